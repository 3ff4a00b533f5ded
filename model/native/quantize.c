/* The inputs of a product: floats to 8-bit integers and a scale. A power of two makes their products
 * exact in bfloat16 too, for half a bit of precision.
 */
#include "product.h"

#include "vector.h"

#define LARGEST_CODE 127
#define LEAST_LARGEST 0x1p-64f /* groups without any larger value are zeros, so that none underflow */

/* The smallest power of two that isn't below x, which is positive. */
INLINE float power_of_two_above(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7FFFFFu) & 0x7F800000u;
    memcpy(&x, &bits, sizeof bits);
    return x;
}

/* LANES codes of a group. */
INLINE void store_codes(i32x16 codes, float scale, int8_t *to, uint16_t *values)
{
    i8x16 bytes = __builtin_convertvector(codes, i8x16);
    memcpy(to, &bytes, sizeof bytes);
#ifdef __AMX_BF16__
    f32x16 x = __builtin_convertvector(codes, f32x16) * scale;
    x = __builtin_shuffle(x, (i32x16){0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15});
    store_bf16(values, x);
#else
    (void)scale, (void)values;
#endif
}

/* Group g of a row; of its values, those from num_values on count as 0. */
static void quantize_group(const float *x, int num_values, const Quantized *to, size_t g)
{
    float padded[INPUT_GROUP] = {0};
    if (num_values < INPUT_GROUP)
        x = memcpy(padded, x, sizeof(float) * (num_values > 0 ? (size_t)num_values : 0));
    f32x16 low = load(x), high = load(x + LANES);
    float most = largest(larger(magnitude(low), magnitude(high)));
    float scale = most > LEAST_LARGEST ? power_of_two_above(most / LARGEST_CODE) : 0;
    float codes_per_unit = scale > 0 ? 1 / scale : 0;
    i32x16 low_codes = rounded(low * codes_per_unit), high_codes = rounded(high * codes_per_unit);
    const size_t at = g * INPUT_GROUP;
    store_codes(low_codes, scale, to->codes + at, to->values + at);
    store_codes(high_codes, scale, to->codes + at + LANES, to->values + at + LANES);
    float codes_total = sum(__builtin_convertvector(low_codes + high_codes, f32x16));
    to->scales[g] = scale;
    to->offsets[g] = -128 * (int32_t)codes_total;
    to->sums[g] = bf16(codes_total * scale);
}

void quantize_row(const float *x, int num_values, int row, Quantized *to, int num_inputs)
{
    const size_t G = (size_t)num_inputs / INPUT_GROUP, first = (size_t)row * G;
    for (size_t g = 0; g < G; g++)
        quantize_group(x + g * INPUT_GROUP, num_values - (int)g * INPUT_GROUP, to, first + g);
}
