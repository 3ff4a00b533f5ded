/* By vectors, for some rows and blocks at a time, which share loads of weights and inputs. */
#include "multiply.h"

#ifndef HAS_TILES

#define CACHE_LINE 64
#define BLOCKS_AHEAD 2
#define ENOUGH_ROWS 4 /* that asking for weights early pays */

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

/* Of a matrix, the blocks that are computed at once. */
typedef struct {
    const uint8_t *codes;
    const uint16_t *scales;
    size_t code_stride, scale_stride; /* to the next block's */
} Blocks;

/* A load of weights is shared by rows, one of inputs by vectors of outputs, as processors multiply
 * more than they load; both as far as registers hold sums. */
#ifdef __AVX512F__
#define BLOCKS_AT_ONCE 2
#define MOST_ROWS 8         /* at a time, for which some sums are kept in memory, though */
#define GOOD_ROWS 6         /* of many */
#define MOST_ROWS_OF_BOTH 4 /* halves of codes */
#define UNPACKS
#define MOST_UNPACKED 640 /* inputs, which a core's nearest cache holds with some rows of them */
#else
#define BLOCKS_AT_ONCE 1
#define MOST_ROWS 4
#define GOOD_ROWS 4
#define MOST_ROWS_OF_BOTH 0
#endif
#define COLUMNS (BLOCKS_AT_ONCE * VECTORS)

#if LANES == 8 || defined(__ARM_FEATURE_DOTPROD)
#define BYTES_BY_HALVES /* as they have products of nibbles, but not of unsigned bytes */
#endif

/* Weights that are computed with later, as a processor doesn't look as far ahead by itself. With few
 * rows it waits for memory all the time, and such questions only add to it. */
INLINE void ask_for(const int num_rows, const void *weights, size_t num_bytes)
{
    if (num_rows >= ENOUGH_ROWS)
        for (size_t i = 0; i < num_bytes; i += CACHE_LINE)
            __builtin_prefetch((const char *)weights + i, 0, 2);
}

/* In these, num_rows is known to the compiler, so that all sums stay in registers. */
#define EACH_SUM                                                                                   \
    for (int row = 0; row < num_rows; row++)                                                       \
        for (int v = 0; v < COLUMNS; v++)

INLINE uint32_t four_inputs(const Rows *rows, int row, int k)
{
    return load_word(rows->codes + (size_t)row * rows->num_inputs + k);
}

INLINE u32s four_weights(const Blocks *blocks, int v, size_t at)
{
    return load_bits(blocks->codes + v / VECTORS * blocks->code_stride + at +
                     4 * (v % VECTORS) * LANES);
}

INLINE u32s half_of(u32s both, int half)
{
    return both >> 4 * half & (u32s)all_words(0x0F0F0F0F);
}

INLINE const uint16_t *scales_of(const Blocks *blocks, int v, size_t at)
{
    return blocks->scales + v / VECTORS * blocks->scale_stride + at;
}

/* Of half a WEIGHT_GROUP of codes of 4 bits, from k on. */
INLINE f32s scales_of_half(const Blocks *blocks, int v, int k, int half)
{
    const size_t at = (size_t)(k / WEIGHT_GROUP * 4 + half) * BLOCK;
    return from_half(scales_of(blocks, v, at) + v % VECTORS * LANES);
}

/* Results of blocks are ROWS_AT_ONCE apart. */
INLINE f32s *output(Outputs *out, int row, int v)
{
    return &out[v / VECTORS * ROWS_AT_ONCE + row].part[v % VECTORS];
}

/* dots = the inputs' groups at ks times halves of codes, the lower ones first; as many halves. */
INLINE void dot_halves(const int num_rows, const int first_half, const int num_halves,
                       i32s (*dots)[MOST_ROWS][COLUMNS], const Rows *rows, const int *ks,
                       const Blocks *blocks, size_t at)
{
    for (int i = 0; i < num_halves; i++)
        EACH_SUM dots[i][row][v] = all_words(NOUGHT);
    for (int k = 0; k < INPUT_GROUP; k += 4)
        for (int i = 0; i < num_halves; i++) {
            u32s four_each[COLUMNS];
            for (int v = 0; v < COLUMNS; v++) {
                u32s both = four_weights(blocks, v, at + k * BLOCK);
                four_each[v] = half_of(both, first_half + i);
            }
            EACH_SUM dots[i][row][v] = dot_nibbles(dots[i][row][v], four_each[v],
                                                   four_inputs(rows, row, ks[i] + k));
        }
    for (int i = 0; i < num_halves; i++)
        EACH_SUM dots[i][row][v] = sum_of_nibbles(dots[i][row][v]);
}

/* dots = the inputs' group at k times codes of 8 bits. */
INLINE void dot_wholes(const int num_rows, i32s (*dots)[COLUMNS], const Rows *rows, int k,
                       const Blocks *blocks)
{
    const int G = rows->num_inputs / INPUT_GROUP, g = k / INPUT_GROUP;
#ifdef BYTES_BY_HALVES
    i32s halves[2][MOST_ROWS][COLUMNS];
    for (int half = 0; half < 2; half++)
        dot_halves(num_rows, half, 1, halves + half, rows, &k, blocks, (size_t)k * BLOCK);
    EACH_SUM dots[row][v] = halves[0][row][v] + (halves[1][row][v] << 4);
    EACH_SUM dots[row][v] += rows->offsets[row * G + g];
#else
    EACH_SUM dots[row][v] = all_words(rows->offsets[row * G + g]);
    for (int i = 0; i < INPUT_GROUP; i += 4) {
        u32s four_each[COLUMNS];
        for (int v = 0; v < COLUMNS; v++)
            four_each[v] = four_weights(blocks, v, (size_t)(k + i) * BLOCK);
        EACH_SUM dots[row][v] = dot_bytes(dots[row][v], four_each[v],
                                          four_inputs(rows, row, k + i));
    }
#endif
}

/* sums += dots, in units of a weight's scale and an input's. */
INLINE void add_scaled(const int num_rows, f32s (*sums)[COLUMNS], i32s (*dots)[COLUMNS],
                       const f32s *weight_scales, const float *input_scales, size_t stride)
{
    EACH_SUM sums[row][v] += scaled(dots[row][v], weight_scales[v]) * input_scales[row * stride];
}

INLINE void multiply_bytes(const int num_rows, const Rows *rows, const Blocks *blocks, Outputs *out)
{
    const int K = rows->num_inputs;
    f32s sums[MOST_ROWS][COLUMNS];
    EACH_SUM sums[row][v] = all(0);
    for (int k = 0; k < K; k += INPUT_GROUP) {
        f32s scales[COLUMNS];
        i32s dots[MOST_ROWS][COLUMNS];
        for (int v = 0; v < COLUMNS; v++) {
            scales[v] = from_bf16(scales_of(blocks, v, k / WEIGHT_GROUP * BLOCK) +
                                  v % VECTORS * LANES);
            if (v % VECTORS == 0)
                ask_for(num_rows, blocks->codes + (BLOCKS_AHEAD + v / VECTORS) *
                        blocks->code_stride + k * BLOCK, INPUT_GROUP * BLOCK);
        }
        dot_wholes(num_rows, dots, rows, k, blocks);
        add_scaled(num_rows, sums, dots, scales, rows->scales + k / INPUT_GROUP, K / INPUT_GROUP);
    }
    EACH_SUM *output(out, row, v) = sums[row][v];
}

/* sums += groups of inputs, from k on, times halves of codes. */
INLINE void multiply_halves(const int num_rows, const int first_half, const int num_halves,
                            f32s (*sums)[COLUMNS], const Rows *rows, int k, const Blocks *blocks)
{
    const int G = rows->num_inputs / INPUT_GROUP, g = k / INPUT_GROUP + first_half;
    const int ks[2] = {g * INPUT_GROUP, (g + 1) * INPUT_GROUP};
    i32s dots[2][MOST_ROWS][COLUMNS];
    dot_halves(num_rows, first_half, num_halves, dots, rows, ks, blocks, (size_t)k / 2 * BLOCK);
    for (int i = 0; i < num_halves; i++) {
        f32s scales[COLUMNS];
        for (int v = 0; v < COLUMNS; v++)
            scales[v] = scales_of_half(blocks, v, k, first_half + i);
        add_scaled(num_rows, sums, dots[i], scales, rows->scales + g + i, G);
    }
}

/* Both halves at once, or one after the other where registers hold no more sums. */
INLINE void multiply_two_groups(const int num_rows, f32s (*sums)[COLUMNS], const Rows *rows, int k,
                                const Blocks *blocks)
{
    if (num_rows <= MOST_ROWS_OF_BOTH)
        multiply_halves(num_rows, 0, 2, sums, rows, k, blocks);
    else {
        multiply_halves(num_rows, 0, 1, sums, rows, k, blocks);
        multiply_halves(num_rows, 1, 1, sums, rows, k, blocks);
    }
}

/* What the least weights add: pairs of groups' sums times pairs of least weights. */
INLINE void multiply_least(const int num_rows, f32s (*sums)[COLUMNS], const Rows *rows,
                           const Blocks *blocks)
{
    const int G = rows->num_inputs / INPUT_GROUP;
    EACH_SUM sums[row][v] = all(0);
    for (int g = 0; g < G; g += 2) {
        Pairs least[COLUMNS];
        for (int v = 0; v < COLUMNS; v++)
            least[v] = load_pairs(scales_of(blocks, v, (size_t)(2 * g + 2) * BLOCK) +
                                  2 * (v % VECTORS) * LANES);
        EACH_SUM sums[row][v] = dot_pairs(sums[row][v], least[v], rows->sums + row * G + g);
    }
}

/* Of 4 bits, the same inputs' weights of the blocks that come next. */
INLINE void ask_for_next(const int num_rows, const Blocks *blocks, int k)
{
    for (int i = BLOCKS_AHEAD; i < BLOCKS_AHEAD + BLOCKS_AT_ONCE; i++) {
        ask_for(num_rows, blocks->codes + i * blocks->code_stride + k / 2 * BLOCK,
                WEIGHT_GROUP / 2 * BLOCK);
        ask_for(num_rows, blocks->scales + i * blocks->scale_stride + k / WEIGHT_GROUP * 4 * BLOCK,
                4 * BLOCK * sizeof(uint16_t));
    }
}

INLINE void multiply_nibbles(const int num_rows, const Rows *rows, const Blocks *blocks,
                             Outputs *out)
{
    f32s sums[MOST_ROWS][COLUMNS];
    multiply_least(num_rows, sums, rows, blocks);
    for (int k = 0; k < rows->num_inputs; k += WEIGHT_GROUP) {
        ask_for_next(num_rows, blocks, k);
        multiply_two_groups(num_rows, sums, rows, k, blocks);
    }
    EACH_SUM *output(out, row, v) = sums[row][v];
}

/* Of num_rows the next ones, so that it is about the same number each time. */
static int next_count(int num_rows, int most)
{
    const int times = (num_rows + most - 1) / most;
    return (num_rows + times - 1) / times;
}

#ifdef __AVX512F__
#define BY_MORE(multiply, ...)                                                                     \
    case 5: multiply(5, __VA_ARGS__); break;                                                       \
    case 6: multiply(6, __VA_ARGS__); break;                                                       \
    case 7: multiply(7, __VA_ARGS__); break;                                                       \
    case 8: multiply(8, __VA_ARGS__); break;
#else
#define BY_MORE(multiply, ...)
#endif

#define BY_COUNT(count, multiply, ...)                                                             \
    switch (count) {                                                                               \
    case 1: multiply(1, __VA_ARGS__); break;                                                       \
    case 2: multiply(2, __VA_ARGS__); break;                                                       \
    case 3: multiply(3, __VA_ARGS__); break;                                                       \
    case 4: multiply(4, __VA_ARGS__); break;                                                       \
    BY_MORE(multiply, __VA_ARGS__)                                                                 \
    }

#ifdef UNPACKS

/* Codes of 4 bits as bytes, and their scales as floats: of some inputs, for many rows. */
typedef struct {
    u32s codes[MOST_UNPACKED / 4][COLUMNS];
    f32s scales[MOST_UNPACKED / INPUT_GROUP][COLUMNS];
} Unpacked;

static void unpack(const Blocks *blocks, int first, int stop, Unpacked *to)
{
    u32s (*codes)[COLUMNS] = to->codes;
    f32s (*scales)[COLUMNS] = to->scales;
    for (int k = first; k < stop; k += WEIGHT_GROUP) {
        ask_for_next(ENOUGH_ROWS, blocks, k);
        for (int half = 0; half < 2; half++, scales++) {
            for (int v = 0; v < COLUMNS; v++)
                scales[0][v] = scales_of_half(blocks, v, k, half);
            for (int i = 0; i < INPUT_GROUP; i += 4, codes++)
                for (int v = 0; v < COLUMNS; v++) {
                    const u32s both = four_weights(blocks, v, (size_t)(k / 2 + i) * BLOCK);
                    codes[0][v] = half_of(both, half);
                }
        }
    }
}

/* out = the inputs from the first one on times what was unpacked, and what out is of those before. */
INLINE void multiply_unpacked(const int num_rows, const Rows *rows, const Blocks *blocks,
                              const Unpacked *unpacked, int first, int stop, Outputs *out)
{
    f32s sums[MOST_ROWS][COLUMNS];
    const u32s (*codes)[COLUMNS] = unpacked->codes;
    const f32s (*scales)[COLUMNS] = unpacked->scales;
    if (first == 0)
        multiply_least(num_rows, sums, rows, blocks);
    else
        EACH_SUM sums[row][v] = *output(out, row, v);
    for (int k = first; k < stop; k += INPUT_GROUP, scales++) {
        i32s dots[MOST_ROWS][COLUMNS];
        EACH_SUM dots[row][v] = all_words(NOUGHT);
        for (int i = 0; i < INPUT_GROUP; i += 4, codes++)
            EACH_SUM dots[row][v] = dot_bytes(dots[row][v], codes[0][v],
                                              four_inputs(rows, row, k + i));
        add_scaled(num_rows, sums, dots, scales[0], rows->scales + k / INPUT_GROUP,
                   rows->num_inputs / INPUT_GROUP);
    }
    EACH_SUM *output(out, row, v) = sums[row][v];
}

/* Of more rows than are computed with at a time. */
static void multiply_many(const Rows *rows, int num_rows, const Blocks *blocks, Outputs *out)
{
    Unpacked unpacked;
    const int K = rows->num_inputs, parts = (K + MOST_UNPACKED - 1) / MOST_UNPACKED;
    const int each = (K / WEIGHT_GROUP + parts - 1) / parts * WEIGHT_GROUP;
    for (int first = 0; first < K; first += each) {
        const int stop = first + each < K ? first + each : K;
        unpack(blocks, first, stop, &unpacked);
        for (int row = 0, count; row < num_rows; row += count) {
            const Rows some = rows_from(rows, row);
            count = next_count(num_rows - row, GOOD_ROWS);
            BY_COUNT(count, multiply_unpacked, &some, blocks, &unpacked, first, stop, out + row)
        }
    }
}

#endif

static void multiply_directly(int bits, const Rows *rows, int num_rows, const Blocks *blocks,
                              Outputs *out)
{
    const int most = num_rows <= 2 * MOST_ROWS ? MOST_ROWS : GOOD_ROWS;
    for (int row = 0, count; row < num_rows; row += count) {
        const Rows some = rows_from(rows, row);
        count = next_count(num_rows - row, most);
        if (bits == 4)
            BY_COUNT(count, multiply_nibbles, &some, blocks, out + row)
        else
            BY_COUNT(count, multiply_bytes, &some, blocks, out + row)
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
    for (int i = 0; i < num_blocks; i += BLOCKS_AT_ONCE, out += BLOCKS_AT_ONCE * ROWS_AT_ONCE) {
        const int is_alone = i + BLOCKS_AT_ONCE > num_blocks; /* then it is computed twice */
        const Blocks blocks = {
            matrix->codes + (index + i) * codes_each,
            matrix->scales + (index + i) * scales_each,
            is_alone ? 0 : codes_each,
            is_alone ? 0 : scales_each,
        };
#ifdef UNPACKS
        if (is_small && num_rows > MOST_ROWS) {
            multiply_many(&rows, num_rows, &blocks, out);
            continue;
        }
#endif
        multiply_directly(matrix->bits, &rows, num_rows, &blocks, out);
    }
}

#endif
