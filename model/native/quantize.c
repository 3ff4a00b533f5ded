/* The inputs of a product: floats to 8-bit integers and a scale. */
#include "product.h"

#include "vector.h"

#define LARGEST_CODE 127
#define VECTORS (INPUT_GROUP / LANES)

INLINE void store_codes(i32s codes, int8_t *to)
{
    i8s bytes = __builtin_convertvector(codes, i8s);
    memcpy(to, &bytes, sizeof bytes);
}

/* Group g of all rows' groups; of its values, those from num_values on count as 0. */
static void quantize_group(const float *x, int num_values, const Quantized *to, size_t g,
                           uint16_t *total)
{
    float padded[INPUT_GROUP] = {0};
    if (num_values < INPUT_GROUP)
        x = memcpy(padded, x, sizeof(float) * (num_values > 0 ? (size_t)num_values : 0));
    f32s values[VECTORS], larges = all(0);
    for (int i = 0; i < VECTORS; i++) {
        values[i] = load(x + i * LANES);
        larges = larger(larges, magnitude(values[i]));
    }
    float most = largest(larges), codes_per_unit = most > 0 ? LARGEST_CODE / most : 0;
    i32s total_codes = all_words(0);
    for (int i = 0; i < VECTORS; i++) {
        i32s codes = rounded(values[i] * codes_per_unit);
        store_codes(codes, to->codes + g * INPUT_GROUP + i * LANES);
        total_codes += codes;
    }
    float codes_total = sum(__builtin_convertvector(total_codes, f32s));
    to->scales[g] = most / LARGEST_CODE;
    to->offsets[g] = -128 * (int32_t)codes_total;
    *total = bf16(codes_total * to->scales[g]);
}

void quantize_row(const float *x, int num_values, int row, Quantized *to, int num_inputs)
{
    const size_t G = (size_t)num_inputs / INPUT_GROUP, first = (size_t)row * G;
    uint16_t *sums = memset(to->sums + (size_t)row * num_sums(num_inputs), 0,
                            sizeof(uint16_t) * num_sums(num_inputs));
    for (size_t g = 0; g < G; g++)
        quantize_group(x + g * INPUT_GROUP, num_values - (int)g * INPUT_GROUP, to, first + g,
                       sums + g);
}
