/* Matrix products of 8-bit integers, with scales per group of inputs. Knows no layers.
 *
 * Shapes: T rows, N outputs in blocks of LANES, K inputs, padded with zeros to whole groups.
 *
 *     weight[n][k] = (code - 128) * scale[n][k / WEIGHT_GROUP]       code unsigned, scale bfloat16
 *     input[t][k]  =  code        * scale[t][k / INPUT_GROUP]        code signed, scale float
 *
 * A row's result is the same to the last bit whatever rows are computed beside it.
 */
#ifndef OCTAVO_PRODUCT_H
#define OCTAVO_PRODUCT_H

#include <stdint.h>

#include "team.h"

#define WEIGHT_GROUP 64
#define INPUT_GROUP 32

/* Block by block, so that a block's weights are read from end to end:
 *
 *     codes     [N / LANES][K / 4][LANES][4]
 *     scales    [N / LANES][K / WEIGHT_GROUP][LANES]
 */
typedef struct {
    int32_t num_inputs;  /* K, padded */
    int32_t num_outputs; /* N, not padded */
    uint8_t *codes;
    uint16_t *scales;
} Matrix;

typedef struct {
    int8_t *codes;    /* [T][K] */
    float *scales;    /* [T][K / INPUT_GROUP] */
    int32_t *offsets; /* -128 times the sum of a group's codes, which undoes the weights' + 128 */
} Quantized;

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

/* Packs rows of num_values float weights into every step-th block of the matrix, from the first. */
void pack_rows(Team *team, const float *weights, int num_rows, int num_values, Matrix *matrix,
               int first_block, int step);

#endif
