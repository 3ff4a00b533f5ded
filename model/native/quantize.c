/* The inputs of a product: floats to 8-bit integers and a scale. */
#include "product.h"

#include "vector.h"

#define LARGEST_CODE 127

/* A group of a row whose values from num_values on count as 0. */
static void quantize_group(const float *x, int num_values, int8_t *codes, float *scale,
                           int32_t *offset, uint16_t *total)
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
    float codes_total = sum(__builtin_convertvector(low_codes + high_codes, f32x16));
    *offset = -128 * (int32_t)codes_total;
    *total = bf16(codes_total * *scale);
}

void quantize_row(const float *x, int num_values, int row, Quantized *to, int num_inputs)
{
    const size_t K = (size_t)num_inputs, G = K / INPUT_GROUP, r = (size_t)row;
    for (size_t g = 0; g < G; g++)
        quantize_group(x + g * INPUT_GROUP, num_values - (int)g * INPUT_GROUP,
                       to->codes + r * K + g * INPUT_GROUP, to->scales + r * G + g,
                       to->offsets + r * G + g, to->sums + r * G + g);
}
