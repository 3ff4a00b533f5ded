/* Rows of inputs times blocks of a matrix: by vectors or, where there is one, by the tile unit. */
#ifndef OCTAVO_MULTIPLY_H
#define OCTAVO_MULTIPLY_H

#include "product.h"

#include "vector.h"

#define VECTORS (BLOCK / LANES)
#ifdef HAS_TILES
#define ROWS_AT_ONCE 16
#define OWN_ROWS 128 /* a thread's, at least: fewer aren't worth reading all weights */
#define ROW_STEP 128 /* their number is a multiple of */
#else
#define ROWS_AT_ONCE 48
#define OWN_ROWS 8
#define ROW_STEP 1
#endif

/* What a block gives for a row. */
typedef struct {
    f32s part[VECTORS];
} Outputs;

/* Of one block or two from index on, whose results are ROWS_AT_ONCE apart in out. */
void multiply_blocks(const Matrix *matrix, int index, int num_blocks, const Quantized *inputs,
                     int first_row, int num_rows, Outputs *out);

#endif
