/* By vectors: up to MOST_ROWS at a time, so that they share each load of weights. */
#include "multiply.h"

#ifndef HAS_TILES

#define CACHE_LINE 64
#define BLOCKS_AHEAD 2 /* as two are computed by some rows at a time */

/* The inputs of a product from some row on. */
typedef struct {
    const int8_t *codes;
    const float *scales;
    const int32_t *offsets;
    const Factor *sums;
    int num_inputs;
} Rows;

INLINE Rows rows_from(const Rows *rows, int first)
{
    const size_t K = (size_t)rows->num_inputs, G = K / INPUT_GROUP, row = (size_t)first;
    return (Rows){rows->codes + row * K, rows->scales + row * G, rows->offsets + row * G,
                  rows->sums + row * G, rows->num_inputs};
}

/* Of a matrix, BLOCK outputs. */
typedef struct {
    const uint8_t *codes;
    const uint16_t *scales;
} Block;

#ifdef __AVX512F__
#define MOST_ROWS 8
#else
#define MOST_ROWS 4 /* whose sums sixteen registers hold */
#endif

#if LANES == 8 || defined(__ARM_FEATURE_DOTPROD)
#define BYTES_BY_HALVES /* as they have products of nibbles, but not of unsigned bytes */
#endif

/* Weights that are computed with later, as a processor doesn't look as far ahead by itself. With few
 * rows it waits for memory all the time, and such questions only add to it. */
INLINE void ask_for(const int num_rows, const void *weights, size_t num_bytes)
{
    if (num_rows == MOST_ROWS)
        for (size_t i = 0; i < num_bytes; i += CACHE_LINE)
            __builtin_prefetch((const char *)weights + i, 0, 2);
}

/* In these, num_rows is known to the compiler, so that all sums stay in registers. */
#define EACH_OUTPUT                                                                                \
    for (int row = 0; row < num_rows; row++)                                                       \
        for (int v = 0; v < VECTORS; v++)

INLINE uint32_t four_inputs(const Rows *rows, int row, int k)
{
    return load_word(rows->codes + (size_t)row * rows->num_inputs + k);
}

/* What the halves of a group's codes give: the lower ones with the inputs from ks[0] on, the upper
 * ones with those from ks[1] on; from `first` to `last` of the two. */
INLINE void dot_halves(const int num_rows, const int first, const int last,
                       i32s (*dots)[MOST_ROWS][VECTORS], const Rows *rows, const int *ks,
                       const uint8_t *codes)
{
    for (int half = first; half <= last; half++)
        EACH_OUTPUT dots[half][row][v] = all_words(0);
    for (int i = 0; i < INPUT_GROUP; i += 4)
        for (int half = first; half <= last; half++) {
            u32s four_each[VECTORS];
            for (int v = 0; v < VECTORS; v++) {
                u32s both = load_bits(codes + i * BLOCK + 4 * v * LANES);
                four_each[v] = both >> 4 * half & (u32s)all_words(0x0F0F0F0F);
            }
            EACH_OUTPUT dots[half][row][v] = dot_nibbles(dots[half][row][v], four_each[v],
                                                         four_inputs(rows, row, ks[half] + i));
        }
    for (int half = first; half <= last; half++)
        EACH_OUTPUT dots[half][row][v] = sum_of_nibbles(dots[half][row][v]);
}

/* Of both halves: at once, or one after the other where registers hold no more sums. */
INLINE void dot_both(const int num_rows, i32s (*dots)[MOST_ROWS][VECTORS], const Rows *rows,
                     int lower_k, int upper_k, const uint8_t *codes)
{
    const int ks[2] = {lower_k, upper_k};
#ifdef __AVX512F__
    dot_halves(num_rows, 0, 1, dots, rows, ks, codes);
#else
    dot_halves(num_rows, 0, 0, dots, rows, ks, codes);
    dot_halves(num_rows, 1, 1, dots, rows, ks, codes);
#endif
}

/* dots = the inputs' group at k times codes of 8 bits. */
INLINE void dot_wholes(const int num_rows, i32s (*dots)[VECTORS], const Rows *rows, int k,
                       const uint8_t *codes)
{
#ifdef BYTES_BY_HALVES
    i32s halves[2][MOST_ROWS][VECTORS];
    dot_both(num_rows, halves, rows, k, k, codes);
    EACH_OUTPUT dots[row][v] = halves[0][row][v] + (halves[1][row][v] << 4);
#else
    EACH_OUTPUT dots[row][v] = all_words(0);
    for (int i = 0; i < INPUT_GROUP; i += 4) {
        u32s four_each[VECTORS];
        for (int v = 0; v < VECTORS; v++)
            four_each[v] = load_bits(codes + i * BLOCK + 4 * v * LANES);
        EACH_OUTPUT dots[row][v] = dot_bytes(dots[row][v], four_each[v],
                                             four_inputs(rows, row, k + i));
    }
#endif
}

INLINE void multiply_bytes(const int num_rows, const Rows *rows, Block block, Outputs *out)
{
    Outputs total[MOST_ROWS];
    const int G = rows->num_inputs / INPUT_GROUP;
    const size_t ahead = BLOCKS_AHEAD * (size_t)rows->num_inputs;
    EACH_OUTPUT total[row].part[v] = all(0);
    for (int k = 0; k < rows->num_inputs; k += WEIGHT_GROUP, block.scales += BLOCK) {
        ask_for(num_rows, block.codes + (ahead + k) * BLOCK, WEIGHT_GROUP * BLOCK);
        ask_for(num_rows, block.scales + ahead / WEIGHT_GROUP * BLOCK, BLOCK * sizeof(uint16_t));
        f32s part[MOST_ROWS][VECTORS]; /* in units of the weights' scale */
        EACH_OUTPUT part[row][v] = all(0);
        for (int i = k; i < k + WEIGHT_GROUP; i += INPUT_GROUP) {
            const int g = i / INPUT_GROUP;
            i32s dots[MOST_ROWS][VECTORS];
            dot_wholes(num_rows, dots, rows, i, block.codes + (size_t)i * BLOCK);
            EACH_OUTPUT part[row][v] += rows->scales[row * G + g] *
                __builtin_convertvector(dots[row][v] + rows->offsets[row * G + g], f32s);
        }
        EACH_OUTPUT total[row].part[v] += part[row][v] * from_bf16(block.scales + v * LANES);
    }
    memcpy(out, total, sizeof *out * num_rows);
}

/* total += two groups of inputs, from k on, times weights of 4 bits. */
INLINE void multiply_two_groups(const int num_rows, Outputs *total, const Rows *rows, int k,
                                const uint8_t *codes, const uint16_t *scales)
{
    const int G = rows->num_inputs / INPUT_GROUP, g = k / INPUT_GROUP;
    i32s dots[2][MOST_ROWS][VECTORS];
    dot_both(num_rows, dots, rows, k, k + INPUT_GROUP, codes);
    for (int v = 0; v < VECTORS; v++) {
        const f32s lower_scale = from_half(scales + v * LANES);
        const f32s upper_scale = from_half(scales + BLOCK + v * LANES);
        for (int row = 0; row < num_rows; row++) {
            const float *scale = rows->scales + row * G + g;
            f32s *sum = &total[row].part[v];
            *sum += __builtin_convertvector(dots[0][row][v], f32s) * (lower_scale * scale[0]);
            *sum += __builtin_convertvector(dots[1][row][v], f32s) * (upper_scale * scale[1]);
        }
    }
}

/* What the least weights add: pairs of groups' sums times pairs of least weights. */
INLINE void multiply_least(const int num_rows, Outputs *total, const Rows *rows,
                           const uint16_t *scales)
{
    const int G = rows->num_inputs / INPUT_GROUP;
    EACH_OUTPUT total[row].part[v] = all(0);
    for (int g = 0; g < G; g += 2) {
        Pairs least[VECTORS];
        for (int v = 0; v < VECTORS; v++)
            least[v] = load_pairs(scales + (2 * g + 2) * BLOCK + 2 * v * LANES);
        EACH_OUTPUT total[row].part[v] = dot_pairs(total[row].part[v], least[v],
                                              rows->sums + row * G + g);
    }
}

INLINE void multiply_nibbles(const int num_rows, const Rows *rows, Block block, Outputs *out)
{
    Outputs total[MOST_ROWS];
    const size_t ahead = BLOCKS_AHEAD * (size_t)rows->num_inputs;
    multiply_least(num_rows, total, rows, block.scales);
    for (int k = 0; k < rows->num_inputs; k += WEIGHT_GROUP, block.scales += 4 * BLOCK) {
        ask_for(num_rows, block.codes + (ahead + k) / 2 * BLOCK, WEIGHT_GROUP / 2 * BLOCK);
        ask_for(num_rows, block.scales + ahead / INPUT_GROUP * 2 * BLOCK, 8 * BLOCK);
        multiply_two_groups(num_rows, total, rows, k, block.codes + (size_t)k / 2 * BLOCK,
                            block.scales);
    }
    memcpy(out, total, sizeof *out * num_rows);
}

#if MOST_ROWS > 4
#define FROM_FOUR(multiply)                                                                        \
    case 4: multiply(4, rows, block, out); break;                                                  \
    case 5: multiply(5, rows, block, out); break;                                                  \
    case 6: multiply(6, rows, block, out); break;                                                  \
    case 7: multiply(7, rows, block, out); break;
#else
#define FROM_FOUR(multiply)
#endif

#define BY_NUM_ROWS(multiply)                                                                      \
    switch (num_rows) {                                                                            \
    case 1: multiply(1, rows, block, out); break;                                                  \
    case 2: multiply(2, rows, block, out); break;                                                  \
    case 3: multiply(3, rows, block, out); break;                                                  \
    FROM_FOUR(multiply)                                                                            \
    default: multiply(MOST_ROWS, rows, block, out);                                                \
    }

static void multiply_few(int bits, const Rows *rows, int num_rows, Block block, Outputs *out)
{
    if (bits == 4)
        BY_NUM_ROWS(multiply_nibbles)
    else
        BY_NUM_ROWS(multiply_bytes)
}

static void multiply_block(int bits, const Rows *rows, int num_rows, Block block, Outputs *out)
{
    for (int row = 0; row < num_rows; row += MOST_ROWS) {
        Rows some = rows_from(rows, row);
        int left = num_rows - row;
        multiply_few(bits, &some, left < MOST_ROWS ? left : MOST_ROWS, block, out + row);
    }
}

void multiply_blocks(const Matrix *matrix, int index, int num_blocks, const Quantized *inputs,
                     int first_row, int num_rows, Outputs *out)
{
    const size_t K = (size_t)matrix->num_inputs, is_small = matrix->bits == 4;
    const size_t codes_each = K * BLOCK >> is_small;
    const size_t scales_each = K / WEIGHT_GROUP * BLOCK << 2 * is_small;
    const Rows whole = {inputs->codes, inputs->scales, inputs->offsets, inputs->sums,
                        matrix->num_inputs};
    const Rows rows = rows_from(&whole, first_row);
    for (int i = index; i < index + num_blocks; i++, out += ROWS_AT_ONCE) {
        Block block = {matrix->codes + i * codes_each, matrix->scales + i * scales_each};
        multiply_block(matrix->bits, &rows, num_rows, block, out);
    }
}

#endif
