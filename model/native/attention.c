/* Online softmax (arXiv:1805.02867), a block of keys at a time. Blocks begin at fixed positions, so
 * that a query adds up its keys in the same order in any batch and any chunk of a prompt. A key of
 * the future weighs exactly 0, and 0 more changes no bit.
 */
#include "attention.h"

#include <stddef.h>

#include "attention_sums.h"

#define MOST_HEAD_DIM 256 /* as in library.py */
#define MOST_VECTORS (MOST_HEAD_DIM / LANES)

/* The last queries of a prompt see the most keys, so they go first: no thread ends up with a long
 * tile while the others are done. */
int make_tiles(const Batch *batch, const int64_t *lens, int group_size, Tile *tiles)
{
    int first_token = 0, num_tiles = 0;
    for (int32_t s = 0; s < batch->num_sequences; s++) {
        int stop = (int)batch->query_lens[s] * group_size, begin = stop - (int)lens[s] * group_size;
        while (stop > begin) {
            int first = (stop - 1) / TILE_QUERIES * TILE_QUERIES;
            if (tiles != NULL)
                tiles[num_tiles] = (Tile){s, first, stop - first, first_token};
            num_tiles++;
            stop = first;
        }
        first_token += (int)batch->query_lens[s];
    }
    return num_tiles;
}

/* What a tile's queries know so far; of each the largest score, and sums relative to it. */
typedef struct {
    Factor queries[TILE_QUERIES * MOST_HEAD_DIM]; /* [TILE_QUERIES][D] */
    int64_t position[TILE_QUERIES];
    float most[TILE_QUERIES];
    f32s total[TILE_QUERIES]; /* of the weights, lane by lane */
    f32s out[MOST_VECTORS][TILE_QUERIES];
    f32s scores[TILE_QUERIES][BLOCK_KEYS / LANES];
    Factor weights[TILE_QUERIES][BLOCK_KEYS];
} State;

/* Scores become weights, and what was summed up before shrinks as the largest score grows. */
INLINE void weigh_block(State *state, int q, int64_t first_position, int num_pages, int vectors)
{
    const i32s lanes = {LANE_NUMBERS};
    const int64_t last = state->position[q] - first_position;
    const int num_keys = num_pages * PAGE_SIZE;
    f32s *scores = state->scores[q], most = all(state->most[q]);
    for (int key = 0; key < num_keys; key += LANES, scores++) {
        int64_t last_lane = last - key;
        i32s visible = lanes <= all_words(last_lane > LANES ? LANES : (int32_t)last_lane);
        *scores = choose(visible, *scores, all(-__builtin_inff()));
        most = larger(most, *scores);
    }
    float largest_score = largest(most);
    if (largest_score > state->most[q]) {
        f32s shrink = exp2_of(all(state->most[q] - largest_score));
        state->most[q] = largest_score;
        state->total[q] *= shrink;
        for (int vector = 0; vector < vectors; vector++)
            state->out[vector][q] *= shrink;
    }
    scores = state->scores[q];
    for (int key = 0; key < num_keys; key += LANES, scores++) {
        Factor *weights = state->weights[q] + key;
        store_factors(weights, exp2_of(*scores - largest_score));
        state->total[q] += load_factors(weights);
    }
}

/* A head's keys in a page, or its values. */
INLINE const uint16_t *chunk_of(const Attention *attention, int64_t page, int kv_head, int is_value)
{
    const size_t at = ((size_t)kv_head * 2 + is_value) * PAGE_SIZE * attention->head_dim;
    return attention->pool + (size_t)page * attention->page_stride + at;
}

INLINE void attend_block(const int num_queries, State *state, const Attention *attention,
                         const int64_t *pages, int num_pages, int64_t first_position, int kv_head)
{
    const int D = attention->head_dim;
    const uint16_t *keys[BLOCK_PAGES], *values[BLOCK_PAGES];
    for (int page = 0; page < num_pages; page++) {
        keys[page] = chunk_of(attention, pages[page], kv_head, 0);
        values[page] = chunk_of(attention, pages[page], kv_head, 1);
    }
    score_pages(num_queries, state->queries, keys, num_pages, D, state->scores);
    for (int q = 0; q < num_queries; q++)
        weigh_block(state, q, first_position, num_pages, D / LANES);
    add_values(num_queries, state->weights, values, num_pages, D, state->out);
}

static void begin(State *state, const Attention *attention, const Tile *tile, int kv_head)
{
    const int H = attention->num_heads, D = attention->head_dim;
    const int G = H / attention->num_kv_heads;
    for (int q = 0; q < tile->num_queries; q++) {
        int token = tile->first_token + (tile->first + q) / G;
        int head = kv_head * G + (tile->first + q) % G;
        memcpy(state->queries + q * D, attention->queries + ((size_t)token * H + head) * D,
               sizeof(Factor) * (size_t)D);
        state->position[q] = attention->batch->positions[token];
        state->most[q] = -__builtin_inff();
        state->total[q] = all(0);
        for (int vector = 0; vector < D / LANES; vector++)
            state->out[vector][q] = all(0);
    }
}

static void finish(State *state, const Attention *attention, const Tile *tile, int kv_head)
{
    const int G = attention->num_heads / attention->num_kv_heads, dim = attention->out_dim;
    for (int q = 0; q < tile->num_queries; q++) {
        int token = tile->first_token + (tile->first + q) / G;
        int head = kv_head * G + (tile->first + q) % G;
        float *out = attention->out + (size_t)token * attention->out_stride + head * dim;
        f32s share = all(1 / sum(state->total[q]));
        for (int d = 0; d < dim; d += LANES) {
            f32s part = state->out[d / LANES][q] * share;
            memcpy(out + d, &part, sizeof(float) * (size_t)(dim - d < LANES ? dim - d : LANES));
        }
    }
}

INLINE void attend_tile(const int num_queries, State *state, const Attention *attention,
                        const Tile *tile, int kv_head)
{
    const Batch *batch = attention->batch;
    const int64_t *pages = batch->page_table + tile->sequence * batch->table_width;
    int num_pages = (int)(state->position[num_queries - 1] / PAGE_SIZE) + 1;
    for (int page = 0; page < num_pages; page += BLOCK_PAGES) {
        int left = num_pages - page;
        attend_block(num_queries, state, attention, pages + page,
                     left < BLOCK_PAGES ? left : BLOCK_PAGES, (int64_t)page * PAGE_SIZE, kv_head);
    }
}

static void compute_tile(void *context, int item)
{
    const Attention *attention = context;
    const Tile *tile = attention->tiles + item / attention->num_kv_heads;
    int kv_head = item % attention->num_kv_heads;
    State state;
    begin(&state, attention, tile, kv_head);
#ifdef __AMX_BF16__
    shape_tiles(tile->num_queries, LANES, LANES / 2);
    attend_tile(tile->num_queries, &state, attention, tile, kv_head);
#else
    switch (tile->num_queries) {
    case 1: attend_tile(1, &state, attention, tile, kv_head); break;
    case 2: attend_tile(2, &state, attention, tile, kv_head); break;
    case 3: attend_tile(3, &state, attention, tile, kv_head); break;
    case 4: attend_tile(4, &state, attention, tile, kv_head); break;
    case 5: attend_tile(5, &state, attention, tile, kv_head); break;
    case 6: attend_tile(6, &state, attention, tile, kv_head); break;
    case 7: attend_tile(7, &state, attention, tile, kv_head); break;
    default: attend_tile(8, &state, attention, tile, kv_head); break;
    }
#endif
    finish(&state, attention, tile, kv_head);
}

void attend(Team *team, Attention *attention)
{
    share(team, attention->num_tiles * attention->num_kv_heads, compute_tile, attention);
}

void write_key(uint16_t *page_keys, int offset, const uint16_t *key, int num_values)
{
    for (int d = 0; d < num_values; d += 2)
        memcpy(page_keys + (d / 2 * PAGE_SIZE + offset) * 2, key + d, 2 * sizeof *key);
}

void write_value(uint16_t *page_values, int head_dim, int offset, const uint16_t *value,
                 int num_values)
{
    for (int d = 0; d < num_values; d++)
        page_values[(offset / 2 * head_dim + d) * 2 + offset % 2] = value[d];
}
