/* The whole model for one step: what model/transformer.py says in PyTorch. Called by __init__.py,
 * whose ctypes structures mirror those below.
 *
 * Shapes: T packed tokens, S rows of logits, W model width, H query heads, K key-value heads, D head
 * dimension, F feed-forward width, V vocabulary.
 */
#ifndef OCTAVO_FORWARD_H
#define OCTAVO_FORWARD_H

#include "attention.h"
#include "product.h"
#include "state.h"

typedef struct {
    const float *attention_norm; /* [W] */
    Matrix qkv;
    Matrix output;
    const float *feed_forward_norm; /* [W] */
    Matrix gate_up;                 /* blocks of both by turns */
    Matrix down;
} Layer;

typedef struct {
    int32_t vocab_size, hidden_size, intermediate_size, num_layers;
    int32_t num_heads, num_kv_heads, head_dim;
    float norm_eps;
    int32_t embedding_block_bytes;
    const void *embedding;  /* [V][W] floats or, if those have a size, blocks; see blocks.h */
    const float *frequency; /* [D / 2], radians per position */
    const Layer *layers;
    const float *norm; /* [W] */
    Matrix head;
} Model;

/* Rows of float weights or, if those have a size, of blocks: into every step-th block of a
 * matrix, from the first; see product.h. */
void pack_matrix(State *state, const void *weights, int num_rows, int num_values, int block_bytes,
                 Matrix *matrix, int first_block, int step);

/* out[T][W], what the last block makes of each token whose output is asked for. A page of the pool
 * has all layers' parts, one after the other. Both return 0, or -1 if there isn't memory enough. */
int forward_hidden(const Model *model, State *state, const Batch *batch, uint16_t *pool,
                   float *out);

/* out[S][V] of x[S][W]. */
int forward_logits(const Model *model, State *state, const float *x, int64_t num_rows, float *out);

#endif
