/* Causal attention over the paged cache, whose pages are read in place. Knows no layers.
 *
 * Shapes: T packed tokens, S sequences, H query heads, K key-value heads, G = H / K query heads that
 * share a key-value head, D head dimension padded with zeros to whole HEAD_STEPs.
 *
 * Keys and values are bfloat16. A page holds PAGE_SIZE tokens of each head, as attention reads them:
 *
 *     [K] │ keys [D / 2][PAGE_SIZE][2]          │ values [PAGE_SIZE / 2][D][2]
 *         │ a pair of dimensions of all tokens  │ all dimensions of a pair of tokens
 *
 * A query's result is the same to the last bit whatever is computed beside it.
 */
#ifndef OCTAVO_ATTENTION_H
#define OCTAVO_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

#include "team.h"
#include "vector.h"

#define PAGE_SIZE 16
#define HEAD_STEP 16 /* BLOCK of library.py */
#ifdef __AMX_BF16__
#define TILE_QUERIES 16
#else
#define TILE_QUERIES 8
#endif

/* Which tokens of a step belong to whom; see model/packing.py. */
typedef struct {
    int64_t num_tokens;
    int64_t num_sequences;
    int64_t table_width;
    const int64_t *token_ids;    /* [T] */
    const int64_t *positions;    /* [T] */
    const int64_t *page_ids;     /* [T], with the offsets: the slots for the tokens' keys, values */
    const int64_t *offsets;      /* [T] */
    const int64_t *page_table;   /* [S][table_width] */
    const int64_t *query_lens;   /* [S] */
    const int64_t *wanted_lens;  /* [S], of how many of the last of them the output is asked for */
} Batch;

/* Neighbouring queries of a sequence that share a key-value head: token by token, head by head. */
typedef struct {
    int32_t sequence;
    int32_t first; /* token_of_the_sequence * G + head_of_the_group, of the first query */
    int32_t num_queries;
    int32_t first_token; /* of the sequence, in the packed batch */
} Tile;

typedef struct {
    const Batch *batch;
    const Tile *tiles;
    int num_tiles;
    int num_heads, num_kv_heads, head_dim; /* the latter padded */
    const Factor *queries;   /* [T][H][D], times log2(e) / sqrt(the unpadded D) */
    const uint16_t *pool;    /* the layer's part of the first page */
    size_t page_stride;      /* in numbers, from there to its part of the next */
    float *out;              /* [T][out_stride], of which H * out_dim count */
    int out_stride, out_dim;
} Attention;

/* Of the last lens[S] tokens of each sequence, and perhaps some before them; returns how many there
 * are. tiles may be NULL. */
int make_tiles(const Batch *batch, const int64_t *lens, int group_size, Tile *tiles);

void attend(Team *team, Attention *attention);

/* A token's key or value of one head, of which num_values count, into its place in the page. */
void write_key(uint16_t *page_keys, int offset, const uint16_t *key, int num_values);
void write_value(uint16_t *page_values, int head_dim, int offset, const uint16_t *value,
                 int num_values);

#endif
