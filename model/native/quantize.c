/* Floats to 8-bit integers and a scale: the inputs of products as they come, weights once. */
#include "product.h"

#include "vector.h"

#define LARGEST_CODE 127

/* A group of a row whose values from num_values on count as 0. */
static void quantize_group(const float *x, int num_values, int8_t *codes, float *scale,
                           int32_t *offset)
{
    float padded[INPUT_GROUP] = {0};
    if (num_values < INPUT_GROUP)
        x = memcpy(padded, x, sizeof(float) * (num_values > 0 ? (size_t)num_values : 0));
    f32x16 low = load(x), high = load(x + LANES);
    float most = largest(larger(magnitude(low), magnitude(high)));
    float codes_per_unit = most > 0 ? LARGEST_CODE / most : 0;
    i32x16 low_codes = rounded(low * codes_per_unit), high_codes = rounded(high * codes_per_unit);
    i8x16 bytes = __builtin_convertvector(low_codes, i8x16);
    memcpy(codes, &bytes, sizeof bytes);
    bytes = __builtin_convertvector(high_codes, i8x16);
    memcpy(codes + LANES, &bytes, sizeof bytes);
    *scale = most / LARGEST_CODE;
    *offset = -128 * (int32_t)sum(__builtin_convertvector(low_codes + high_codes, f32x16));
}

void quantize_row(const float *x, int num_values, int row, Quantized *to, int num_inputs)
{
    const size_t K = (size_t)num_inputs, G = K / INPUT_GROUP, r = (size_t)row;
    for (size_t g = 0; g < G; g++)
        quantize_group(x + g * INPUT_GROUP, num_values - (int)g * INPUT_GROUP,
                       to->codes + r * K + g * INPUT_GROUP, to->scales + r * G + g,
                       to->offsets + r * G + g);
}

/* The smallest bfloat16 not below x, which is positive: no code then exceeds LARGEST_CODE. */
static uint16_t bf16_above(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0xFFFFu) >> 16);
}

typedef struct {
    const float *weights;
    int num_rows, num_values;
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
        codes[k / 4 * 4 * LANES + k % 4] = (uint8_t)((int)(code + 128.5f));
    }
}

static void pack_block(void *context, int item)
{
    const Packing *packing = context;
    const int K = packing->matrix->num_inputs;
    size_t block = (size_t)(packing->first_block + item * packing->step);
    for (int lane = 0; lane < LANES; lane++) {
        int row = item * LANES + lane;
        const float *weights = packing->weights + (size_t)row * packing->num_values;
        for (int k = 0; k < K; k += WEIGHT_GROUP) {
            int left = row < packing->num_rows ? packing->num_values - k : 0;
            left = left < 0 ? 0 : left < WEIGHT_GROUP ? left : WEIGHT_GROUP;
            pack_group(weights + k, left,
                       packing->matrix->codes + (block * K + k) * LANES + 4 * lane,
                       packing->matrix->scales + (block * K + k) / WEIGHT_GROUP * LANES + lane);
        }
    }
}

void pack_rows(Team *team, const float *weights, int num_rows, int num_values, Matrix *matrix,
               int first_block, int step)
{
    Packing packing = {weights, num_rows, num_values, matrix, first_block, step};
    share(team, (num_rows + LANES - 1) / LANES, pack_block, &packing);
}
