/* The two sums of attention, of a tile of queries with a page: what keys score, and values by their
 * weights. By vectors or, where there is one, by the tile unit, always the same one for all queries.
 */
#ifndef OCTAVO_ATTENTION_SUMS_H
#define OCTAVO_ATTENTION_SUMS_H

#include "attention.h"

#include "vector.h"

#define BLOCK_PAGES 4
#define BLOCK_KEYS (BLOCK_PAGES * PAGE_SIZE)

#ifdef __AMX_BF16__

#include "tiles.h"

/* sums += left times right, whole tiles or half ones: of 32 dimensions or 16, of 16 keys. */
INLINE void add_tile(const void *left, size_t left_stride, const void *right, size_t right_stride,
                     int is_whole)
{
    if (is_whole) {
        _tile_loadd(2, left, left_stride);
        _tile_loadd(4, right, right_stride);
        _tile_dpbf16ps(0, 2, 4);
    } else {
        _tile_loadd(3, left, left_stride);
        _tile_loadd(6, right, right_stride);
        _tile_dpbf16ps(0, 3, 6);
    }
}

INLINE void score_page(const Factor *queries, const uint16_t *keys, int D,
                       f32s (*scores)[BLOCK_KEYS / LANES])
{
    _tile_zero(0);
    for (int d = 0; d < D; d += 2 * LANES)
        add_tile(queries + d, D * sizeof(uint16_t), keys + d * PAGE_SIZE, 4 * PAGE_SIZE,
                 D - d > LANES);
    _tile_stored(0, scores, sizeof *scores);
}

INLINE void score_pages(const int num_queries, const Factor *queries, const uint16_t *const *keys,
                        int num_pages, int D, f32s (*scores)[BLOCK_KEYS / LANES])
{
    (void)num_queries; /* has shaped the tiles */
    for (int page = 0; page < num_pages; page++)
        score_page(queries, keys[page], D,
                   (f32s(*)[BLOCK_KEYS / LANES]) & scores[0][page * PAGE_SIZE / LANES]);
}

INLINE void add_values(const int num_queries, Factor (*weights)[BLOCK_KEYS],
                       const uint16_t *const *values, int num_pages, int D,
                       f32s (*out)[TILE_QUERIES])
{
    (void)num_queries; /* has shaped the tiles */
    for (int vector = 0; vector < D / LANES; vector++) {
        _tile_loadd(0, out[vector], sizeof(f32s));
        for (int page = 0; page < num_pages; page++)
            add_tile(weights[0] + page * PAGE_SIZE, sizeof *weights,
                     values[page] + vector * 2 * LANES, 2 * D * sizeof(uint16_t), 0);
        _tile_stored(0, out[vector], sizeof(f32s));
    }
}

#else

/* Vectors that share each load of a factor, as processors multiply more than they load: as many as
 * registers hold sums of. */
#if defined(__AVX512F__)
#define MOST_AT_ONCE 4
#elif defined(__AVX2__)
#define MOST_AT_ONCE 2
#else
#define MOST_AT_ONCE 1
#endif
#define AT_ONCE(num_queries) \
    (2 * (num_queries) <= TILE_QUERIES ? MOST_AT_ONCE : (MOST_AT_ONCE + 1) / 2)

/* sums[v][q] += pairs of numbers of query q times pairs for each lane. */
INLINE void add_pairs(const int num_queries, const int num_vectors, f32s (*sums)[TILE_QUERIES],
                      const uint16_t *const *pairs, int stride, const Factor *factors,
                      int factor_stride, int num_pairs)
{
    for (int i = 0; i < num_pairs; i++) {
        Pairs pair_each[MOST_AT_ONCE];
        for (int v = 0; v < num_vectors; v++)
            pair_each[v] = load_pairs(pairs[v] + (size_t)i * stride);
        for (int q = 0; q < num_queries; q++)
            for (int v = 0; v < num_vectors; v++)
                sums[v][q] = dot_pairs(sums[v][q], pair_each[v],
                                       factors + q * factor_stride + 2 * i);
    }
}

/* Of some vectors of keys from the first on. */
INLINE void score_vectors(const int num_queries, const int num_vectors, const Factor *queries,
                          const uint16_t *const *keys, int first, int D,
                          f32s (*scores)[BLOCK_KEYS / LANES])
{
    f32s sums[MOST_AT_ONCE][TILE_QUERIES];
    const uint16_t *pairs[MOST_AT_ONCE];
    for (int v = 0; v < num_vectors; v++) {
        const int key = (first + v) * LANES;
        pairs[v] = keys[key / PAGE_SIZE] + 2 * (key % PAGE_SIZE);
        for (int q = 0; q < num_queries; q++)
            sums[v][q] = all(0);
    }
    add_pairs(num_queries, num_vectors, sums, pairs, 2 * PAGE_SIZE, queries, D, D / 2);
    for (int v = 0; v < num_vectors; v++)
        for (int q = 0; q < num_queries; q++)
            scores[q][first + v] = sums[v][q];
}

INLINE void score_pages(const int num_queries, const Factor *queries, const uint16_t *const *keys,
                        int num_pages, int D, f32s (*scores)[BLOCK_KEYS / LANES])
{
    const int num_vectors = num_pages * PAGE_SIZE / LANES, some = AT_ONCE(num_queries);
    int vector = 0;
    for (; vector + some <= num_vectors; vector += some)
        score_vectors(num_queries, some, queries, keys, vector, D, scores);
    for (; vector < num_vectors; vector++)
        score_vectors(num_queries, 1, queries, keys, vector, D, scores);
}

/* Some vectors of dimensions of the values of a block, weighed and added up. */
INLINE void add_vectors(const int num_queries, const int num_vectors,
                        Factor (*weights)[BLOCK_KEYS], const uint16_t *const *values, int num_pages,
                        int D, int first, f32s (*out)[TILE_QUERIES])
{
    f32s sums[MOST_AT_ONCE][TILE_QUERIES];
    for (int v = 0; v < num_vectors; v++)
        for (int q = 0; q < num_queries; q++)
            sums[v][q] = out[first + v][q];
    for (int page = 0; page < num_pages; page++) {
        const uint16_t *pairs[MOST_AT_ONCE];
        for (int v = 0; v < num_vectors; v++)
            pairs[v] = values[page] + (first + v) * 2 * LANES;
        add_pairs(num_queries, num_vectors, sums, pairs, 2 * D, weights[0] + page * PAGE_SIZE,
                  BLOCK_KEYS, PAGE_SIZE / 2);
    }
    for (int v = 0; v < num_vectors; v++)
        for (int q = 0; q < num_queries; q++)
            out[first + v][q] = sums[v][q];
}

INLINE void add_values(const int num_queries, Factor (*weights)[BLOCK_KEYS],
                       const uint16_t *const *values, int num_pages, int D,
                       f32s (*out)[TILE_QUERIES])
{
    const int some = AT_ONCE(num_queries);
    int vector = 0;
    for (; vector + some <= D / LANES; vector += some)
        add_vectors(num_queries, some, weights, values, num_pages, D, vector, out);
    for (; vector < D / LANES; vector++)
        add_vectors(num_queries, 1, weights, values, num_pages, D, vector, out);
}

#endif
#endif
