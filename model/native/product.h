/* Matrix products of small integers, with scales. Knows no layers.
 *
 * Shapes: T rows, N outputs in blocks of BLOCK, K inputs, padded with zeros to whole WEIGHT_GROUPs.
 *
 *     8 bits    weight[n][k] = (code - 128) * scale[n][k / WEIGHT_GROUP]    the scale a bfloat16
 *     4 bits    weight[n][k] = code * scale[n][k / INPUT_GROUP] + least[n][k / INPUT_GROUP]
 *                                                      as in GGUF files: the scale a half, the least
 *                                                      a bfloat16, which rounds it by 0.4 % at most
 *     inputs    input[t][k] = code * scale[t][k / INPUT_GROUP]              the code signed
 *
 * The tile unit adds up integers only, so what it multiplies has no groups:
 *
 *     8 bits    weight[n][k] = (code - 128) * scale[n]
 *     inputs    input[t][k] = (256 * upper code + lower code) * scale[t]    both signed
 *
 * A row's result is the same to the last bit whatever rows are computed beside it.
 */
#ifndef OCTAVO_PRODUCT_H
#define OCTAVO_PRODUCT_H

#include <stdint.h>

#include "team.h"
#include "vector.h"

#define BLOCK 16 /* of outputs */
#define WEIGHT_GROUP 64
#define INPUT_GROUP 32
#ifdef __AMX_INT8__
#define HAS_TILES
#endif

/* Block by block, so that a block's weights are read from end to end:
 *
 *     8 bits    codes     [N / BLOCK][K / 4][BLOCK][4]
 *               scales    [N / BLOCK][K / WEIGHT_GROUP][BLOCK]; for the tile unit [N / BLOCK][BLOCK]
 *     4 bits    codes     [N / BLOCK][K / WEIGHT_GROUP][INPUT_GROUP / 4][BLOCK][4]
 *                                        the lower halves for the first INPUT_GROUP of the group
 *               scales    [N / BLOCK][K / WEIGHT_GROUP][4][BLOCK]
 *                                        two rows of scales, then pairs of least weights
 */
typedef struct {
    int32_t num_inputs;  /* K, padded */
    int32_t num_outputs; /* N, not padded */
    int32_t bits;
    uint8_t *codes;
    uint16_t *scales;
} Matrix;

/* By groups; for the tile unit of the whole row, upper codes first. */
typedef struct {
    int8_t *codes;    /* [T][K]; upper and lower ones: [T][2][K] */
    float *scales;    /* [T][K / INPUT_GROUP]; [T] */
    int32_t *offsets; /* NOUGHT, or 0 for the tile unit, less 128 times the sum of the codes; [T][2] */
    Factor *sums;     /* [T][K / INPUT_GROUP], of the inputs, for the least weights; none */
} Quantized;

#ifdef HAS_TILES
#define CODES_EACH 2 /* of an input */
#else
#define CODES_EACH 1
#endif

/* What becomes of a product y[t][n]. */
typedef enum {
    STORE,  /* out[t][n] = y */
    ADD,    /* out[t][n] += y */
    SWIGLU, /* blocks come in pairs, gate and up: out[t][n] = gate / (1 + e^-gate) * up */
} Ending;

/* x has num_values floats; what K has more counts as 0. */
void quantize_row(const float *x, int num_values, int row, Quantized *to, int num_inputs);

void product(Team *team, const Matrix *matrix, const Quantized *inputs, int num_rows, Ending ending,
             float *out, int out_stride);

/* Packs rows of num_values float weights, as 8 bits, into every step-th block from the first. */
void pack_rows(Team *team, const float *weights, int num_rows, int num_values, Matrix *matrix,
               int first_block, int step);

/* The same for rows of num_groups blocks; see blocks.h. Into 4 bits, if the matrix has so many. */
void pack_blocks(Team *team, const uint8_t *blocks, int num_rows, int num_groups, int block_bytes,
                 Matrix *matrix, int first_block, int step);

#endif
