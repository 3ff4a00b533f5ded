/* Weights into the order in which products read them, once, as a model is loaded. */
#include <stddef.h>

#include "blocks.h"
#include "product.h"
#include "vector.h"

#define LARGEST_CODE 127

/* The smallest bfloat16 not below x, which is positive: no code then exceeds LARGEST_CODE. */
static uint16_t bf16_above(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0xFFFFu) >> 16);
}

typedef struct {
    const float *weights;
    const uint8_t *blocks; /* or these */
    int num_rows, num_values, block_bytes;
    Matrix *matrix;
    int first_block, step;
} Packing;

/* The inputs that share a scale. */
static int group_size(const Matrix *matrix)
{
#ifdef HAS_TILES
    return matrix->num_inputs;
#else
    (void)matrix;
    return WEIGHT_GROUP;
#endif
}

/* Those from num_values on are 0. */
static void pack_group(const float *weights, int num_values, int size, uint8_t *codes,
                       uint16_t *scale)
{
    f32s larges = all(0);
    for (int k = 0; k < num_values; k += LANES)
        larges = larger(larges, magnitude(load_first(weights + k, num_values - k)));
    *scale = bf16_above(largest(larges) / LARGEST_CODE);
    const uint32_t bits = (uint32_t)*scale << 16;
    float unit;
    memcpy(&unit, &bits, sizeof unit);
    for (int k = 0; k < size; k += LANES) {
        const f32s exact = load_first(weights + k, num_values - k) / (unit > 0 ? unit : 1);
        const i8s whole = __builtin_convertvector(rounded(exact) + 128, i8s);
        for (int i = 0; i < LANES; i += 4)
            memcpy(codes + (k + i) * BLOCK, (const char *)&whole + i, 4);
    }
}

/* A row of a block, which has num_values values. */
static void pack_lane(const float *weights, int num_values, const Matrix *matrix, size_t block,
                      int lane)
{
    const size_t K = (size_t)matrix->num_inputs;
    const int size = group_size(matrix);
    for (size_t k = 0; k < K; k += size) {
        const int left = num_values - (int)k;
        pack_group(weights + k, left < 0 ? 0 : left < size ? left : size, size,
                   matrix->codes + (block * K + k) * BLOCK + 4 * lane,
                   matrix->scales + (block * K + k) / size * BLOCK + lane);
    }
}

static void pack_block(void *context, int item)
{
    const Packing *packing = context;
    const size_t block = (size_t)(packing->first_block + item * packing->step);
    for (int lane = 0; lane < BLOCK; lane++) {
        const int row = item * BLOCK + lane, num_values = packing->num_values;
        pack_lane(packing->weights + (size_t)row * num_values,
                  row < packing->num_rows ? num_values : 0, packing->matrix, block, lane);
    }
}

void pack_rows(Team *team, const float *weights, int num_rows, int num_values, Matrix *matrix,
               int first_block, int step)
{
    Packing packing = {weights, NULL, num_rows, num_values, 0, matrix, first_block, step};
    share(team, (num_rows + BLOCK - 1) / BLOCK, pack_block, &packing);
}

/* As 8 bits. */
static void pack_block_of_blocks(void *context, int item)
{
    const Packing *packing = context;
    const int G = packing->num_values, bytes = packing->block_bytes;
    const size_t block = (size_t)(packing->first_block + item * packing->step);
    float weights[G * INPUT_GROUP];
    for (int lane = 0; lane < BLOCK; lane++) {
        const int row = item * BLOCK + lane, num_groups = row < packing->num_rows ? G : 0;
        decode_blocks(packing->blocks + (size_t)row * G * bytes, num_groups, bytes, weights);
        pack_lane(weights, num_groups * INPUT_GROUP, packing->matrix, block, lane);
    }
}

/* Block g of a row, into the lower or the upper halves of 32 bytes. */
static void pack_nibbles(const uint8_t *block, int block_bytes, int g, uint8_t *codes,
                         uint16_t *scales, int lane)
{
    const int is_high = g % 2;
    memcpy(scales + is_high * BLOCK + lane, block, SCALE_BYTES);
    scales[2 * BLOCK + 2 * lane + is_high] = bf16(block_least(block, block_bytes));
    for (int k = 0; k < INPUT_GROUP; k++)
        codes[k / 4 * 4 * BLOCK + 4 * lane + k % 4] |=
            (uint8_t)(block_code(block, block_bytes, k) << 4 * is_high);
}

static void pack_block_of_nibbles(void *context, int item)
{
    const Packing *packing = context;
    const size_t K = (size_t)packing->matrix->num_inputs;
    const size_t at = (size_t)(packing->first_block + item * packing->step) * K * BLOCK;
    uint8_t *codes = packing->matrix->codes + at / 2;
    uint16_t *scales = packing->matrix->scales + at / WEIGHT_GROUP * 4;
    memset(codes, 0, K / 2 * BLOCK);
    memset(scales, 0, sizeof(uint16_t) * K / WEIGHT_GROUP * 4 * BLOCK);
    for (int lane = 0; lane < BLOCK && item * BLOCK + lane < packing->num_rows; lane++) {
        size_t first = (size_t)(item * BLOCK + lane) * packing->num_values;
        for (int g = 0; g < packing->num_values; g++)
            pack_nibbles(packing->blocks + (first + g) * packing->block_bytes, packing->block_bytes,
                         g, codes + (size_t)(g / 2) * INPUT_GROUP * BLOCK,
                         scales + (size_t)(g / 2) * 4 * BLOCK, lane);
    }
}

void pack_blocks(Team *team, const uint8_t *blocks, int num_rows, int num_groups, int block_bytes,
                 Matrix *matrix, int first_block, int step)
{
    Packing packing = {NULL, blocks, num_rows, num_groups, block_bytes, matrix, first_block, step};
    Work *work = matrix->bits == 4 ? pack_block_of_nibbles : pack_block_of_blocks;
    share(team, (num_rows + BLOCK - 1) / BLOCK, work, &packing);
}
