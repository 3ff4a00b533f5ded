/* Weights into the order in which products read them, once, as a model is loaded. */
#include <stddef.h>

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

/* A group of one row, into lane `lane` of a block. */
static void pack_group(const float *weights, int num_values, uint8_t *codes, uint16_t *scale)
{
    float most = 0;
    for (int k = 0; k < num_values; k++)
        most = __builtin_fabsf(weights[k]) > most ? __builtin_fabsf(weights[k]) : most;
    *scale = bf16_above(most / LARGEST_CODE);
    uint32_t bits = (uint32_t)*scale << 16;
    float unit;
    memcpy(&unit, &bits, sizeof unit);
    for (int k = 0; k < WEIGHT_GROUP; k++) {
        float code = k < num_values && unit > 0 ? weights[k] / unit : 0;
        codes[k / 4 * 4 * BLOCK + k % 4] = (uint8_t)((int)(code + 128.5f));
    }
}

static void pack_block(void *context, int item)
{
    const Packing *packing = context;
    const int K = packing->matrix->num_inputs;
    size_t block = (size_t)(packing->first_block + item * packing->step);
    for (int lane = 0; lane < BLOCK; lane++) {
        int row = item * BLOCK + lane;
        const float *weights = packing->weights + (size_t)row * packing->num_values;
        for (int k = 0; k < K; k += WEIGHT_GROUP) {
            int left = row < packing->num_rows ? packing->num_values - k : 0;
            left = left < 0 ? 0 : left < WEIGHT_GROUP ? left : WEIGHT_GROUP;
            pack_group(weights + k, left,
                       packing->matrix->codes + (block * K + k) * BLOCK + 4 * lane,
                       packing->matrix->scales + (block * K + k) / WEIGHT_GROUP * BLOCK + lane);
        }
    }
}

void pack_rows(Team *team, const float *weights, int num_rows, int num_values, Matrix *matrix,
               int first_block, int step)
{
    Packing packing = {weights, NULL, num_rows, num_values, 0, matrix, first_block, step};
    share(team, (num_rows + BLOCK - 1) / BLOCK, pack_block, &packing);
}

static uint16_t half_at(const uint8_t *from)
{
    uint16_t half;
    memcpy(&half, from, sizeof half);
    return half;
}

static float float_of_half(uint16_t half)
{
    const uint16_t halves[LANES] = {half};
    return from_half(halves)[0];
}

/* Block g of a row: 16 bytes with codes j and 16 + j, into the lower or the upper halves of 32. */
static void pack_nibbles(const uint8_t *block, int block_bytes, int g, uint8_t *codes,
                         uint16_t *scales, int lane)
{
    const uint8_t *from = block + block_bytes - INPUT_GROUP / 2;
    uint16_t scale = half_at(block);
    int is_high = g % 2;
    scales[is_high * BLOCK + lane] = scale;
    scales[2 * BLOCK + 2 * lane + is_high] =
        bf16(block_bytes == 20 ? float_of_half(half_at(block + 2)) : -8 * float_of_half(scale));
    for (int k = 0; k < INPUT_GROUP; k++) {
        int code = k < INPUT_GROUP / 2 ? from[k] & 15 : from[k - INPUT_GROUP / 2] >> 4;
        codes[k / 4 * 4 * BLOCK + 4 * lane + k % 4] |= (uint8_t)(code << 4 * is_high);
    }
}

static void pack_block_of_blocks(void *context, int item)
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
    share(team, (num_rows + BLOCK - 1) / BLOCK, pack_block_of_blocks, &packing);
}
