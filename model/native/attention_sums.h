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

INLINE void score_page(const int num_queries, const Factor *queries, const uint16_t *keys, int D,
                       f32s (*scores)[BLOCK_KEYS / LANES])
{
    (void)num_queries; /* has shaped the tiles */
    _tile_zero(0);
    for (int d = 0; d < D; d += 2 * LANES)
        add_tile(queries + d, D * sizeof(uint16_t), keys + d * PAGE_SIZE, 4 * PAGE_SIZE,
                 D - d > LANES);
    _tile_stored(0, scores, sizeof *scores);
}

INLINE void add_values(const int num_queries, Factor (*weights)[BLOCK_KEYS],
                       const uint16_t *const *values, int num_pages, int D, int vector,
                       f32s *sums)
{
    (void)num_queries; /* has shaped the tiles */
    _tile_loadd(0, sums, sizeof *sums);
    for (int page = 0; page < num_pages; page++)
        add_tile(weights[0] + page * PAGE_SIZE, sizeof *weights,
                 values[page] + vector * 2 * LANES, 2 * D * sizeof(uint16_t), 0);
    _tile_stored(0, sums, sizeof *sums);
}

#else

/* sums[q] += pairs of numbers of query q times pairs for each lane. */
INLINE void add_pairs(const int num_queries, f32s *sums, const uint16_t *pairs, int stride,
                      const Factor *factors, int factor_stride, int num_pairs)
{
    for (int i = 0; i < num_pairs; i++) {
        const Pairs pair_each = load_pairs(pairs + (size_t)i * stride);
        for (int q = 0; q < num_queries; q++)
            sums[q] = dot_pairs(sums[q], pair_each, factors + q * factor_stride + 2 * i);
    }
}

INLINE void score_page(const int num_queries, const Factor *queries, const uint16_t *keys, int D,
                       f32s (*scores)[BLOCK_KEYS / LANES])
{
    for (int key = 0; key < PAGE_SIZE; key += LANES) {
        f32s sums[TILE_QUERIES];
        for (int q = 0; q < num_queries; q++)
            sums[q] = all(0);
        add_pairs(num_queries, sums, keys + 2 * key, 2 * PAGE_SIZE, queries, D, D / 2);
        for (int q = 0; q < num_queries; q++)
            scores[q][key / LANES] = sums[q];
    }
}

/* LANES dimensions of the values of a block, weighed and added up. */
INLINE void add_values(const int num_queries, Factor (*weights)[BLOCK_KEYS],
                       const uint16_t *const *values, int num_pages, int D, int vector,
                       f32s *out)
{
    f32s sums[TILE_QUERIES];
    for (int q = 0; q < num_queries; q++)
        sums[q] = out[q];
    for (int page = 0; page < num_pages; page++)
        add_pairs(num_queries, sums, values[page] + vector * 2 * LANES, 2 * D,
                  weights[0] + page * PAGE_SIZE, BLOCK_KEYS, PAGE_SIZE / 2);
    for (int q = 0; q < num_queries; q++)
        out[q] = sums[q];
}

#endif
#endif
