/* The inputs of a product: floats to integers and a scale. */
#include "product.h"

#define LARGEST_CODE 127

INLINE void store_codes(i32s codes, int8_t *to)
{
    i8s bytes = __builtin_convertvector(codes, i8s);
    memcpy(to, &bytes, sizeof bytes);
}

INLINE int32_t total(i32s codes)
{
    return (int32_t)sum(__builtin_convertvector(codes, f32s)); /* exact below 2^24 */
}

#ifdef HAS_TILES

#define LARGEST (256 * LARGEST_CODE)

void quantize_row(const float *x, int num_values, int row, Quantized *to, int num_inputs)
{
    int8_t *codes = to->codes + (size_t)row * 2 * num_inputs;
    f32s larges = all(0);
    for (int i = 0; i < num_values; i += LANES)
        larges = larger(larges, magnitude(load_first(x + i, num_values - i)));
    const float most = largest(larges), codes_per_unit = most > 0 ? LARGEST / most : 0;
    i32s uppers = all_words(0), lowers = all_words(0);
    for (int i = 0; i < num_inputs; i += LANES) {
        const i32s both = rounded(load_first(x + i, num_values - i) * codes_per_unit);
        const i32s upper = (both + 128) >> 8, lower = both - (upper << 8);
        store_codes(upper, codes + i);
        store_codes(lower, codes + num_inputs + i);
        uppers += upper;
        lowers += lower;
    }
    to->scales[row] = most / LARGEST;
    to->offsets[2 * row] = -128 * total(uppers);
    to->offsets[2 * row + 1] = -128 * total(lowers);
}

#else

#define VECTORS (INPUT_GROUP / LANES)

/* Group g of all rows' groups; of its values, those from num_values on count as 0. */
static void quantize_group(const float *x, int num_values, const Quantized *to, size_t g)
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
    const int32_t codes_total = total(total_codes);
    to->scales[g] = most / LARGEST_CODE;
    to->offsets[g] = NOUGHT - 128 * codes_total;
    to->sums[g] = factor((float)codes_total * to->scales[g]);
}

void quantize_row(const float *x, int num_values, int row, Quantized *to, int num_inputs)
{
    const size_t G = (size_t)num_inputs / INPUT_GROUP, first = (size_t)row * G;
    for (size_t g = 0; g < G; g++)
        quantize_group(x + g * INPUT_GROUP, num_values - (int)g * INPUT_GROUP, to, first + g);
}

#endif
