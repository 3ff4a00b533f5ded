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

/* The same of LANES groups, all of whose values are there. */
static void quantize_groups(const float *x, const Quantized *to, size_t first)
{
    i32s larges[LANES], totals[LANES];
    for (int g = 0; g < LANES; g++) {
        f32s large = all(0);
        for (int i = 0; i < INPUT_GROUP; i += LANES)
            large = larger(large, magnitude(load(x + g * INPUT_GROUP + i)));
        larges[g] = (i32s)large;
    }
    const f32s most = largest_of_each(larges), scales = most / LARGEST_CODE;
    const f32s codes_per_unit = choose(most > 0, LARGEST_CODE / most, all(0));
    for (int g = 0; g < LANES; g++) {
        totals[g] = all_words(0);
        for (int i = 0; i < INPUT_GROUP; i += LANES) {
            const size_t at = (size_t)g * INPUT_GROUP + i;
            const i32s codes = rounded(load(x + at) * codes_per_unit[g]);
            store_codes(codes, to->codes + first * INPUT_GROUP + at);
            totals[g] += codes;
        }
    }
    const i32s total_codes = sum_of_each(totals), offsets = NOUGHT - 128 * total_codes;
    store(to->scales + first, scales);
    memcpy(to->offsets + first, &offsets, sizeof offsets);
    store_factors(to->sums + first, __builtin_convertvector(total_codes, f32s) * scales);
}

void quantize_row(const float *x, int num_values, int row, Quantized *to, int num_inputs)
{
    const size_t G = (size_t)num_inputs / INPUT_GROUP, first = (size_t)row * G;
    size_t g = 0;
    for (; (g + LANES) * INPUT_GROUP <= (size_t)num_values; g += LANES)
        quantize_groups(x + g * INPUT_GROUP, to, first + g);
    for (; g < G; g++)
        quantize_group(x + g * INPUT_GROUP, num_values - (int)g * INPUT_GROUP, to, first + g);
}

#endif
