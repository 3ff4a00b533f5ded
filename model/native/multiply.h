/* Rows of inputs times a block of a matrix: by vectors, or by the tile unit where there is one. A
 * group's sum is exact in both, and groups are added up in the same order, so that a row's bits
 * don't tell which of the two computed it.
 */
#ifndef OCTAVO_MULTIPLY_H
#define OCTAVO_MULTIPLY_H

#include "product.h"

#include "vector.h"

#define VECTORS (BLOCK / LANES)
#define ROWS_AT_ONCE 128 /* whose inputs stay in a core's cache while the matrix passes by */

/* The inputs of a product from some row on. */
typedef struct {
    const int8_t *codes;
    const float *scales;
    const int32_t *offsets;
    const uint16_t *sums;
    int num_inputs;
} Rows;

INLINE Rows rows_from(const Rows *rows, int first)
{
    const size_t K = (size_t)rows->num_inputs, G = K / INPUT_GROUP, row = (size_t)first;
    return (Rows){rows->codes + row * K, rows->scales + row * G, rows->offsets + row * G,
                  rows->sums + row * num_sums(rows->num_inputs), rows->num_inputs};
}

/* What a block gives for a row. */
typedef struct {
    f32s part[VECTORS];
} Outputs;

/* Of a matrix, BLOCK outputs; or, with twice the codes and scales, two such blocks in a row. */
typedef struct {
    const uint8_t *codes;
    const uint16_t *scales;
} Block;

void multiply_by_vectors(int bits, const Rows *rows, int num_rows, Block block, Outputs *out);

/* One block or two, whose results are ROWS_AT_ONCE apart in out; of as many of the rows as are worth
 * it, which it returns. */
int multiply_by_tiles(int bits, const Rows *rows, int num_rows, Block block, int num_blocks,
                      Outputs *out);

#endif
