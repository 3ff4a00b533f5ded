/* By vectors: up to eight rows at a time, so that they share each load of weights. */
#include "multiply.h"

#define MOST_ROWS 8

/* In these, num_rows is known to the compiler, so that all sums stay in registers. */

INLINE uint32_t four_inputs(const Rows *rows, int row, int k)
{
    return load_word(rows->codes + (size_t)row * rows->num_inputs + k);
}

/* part += the inputs' group at k times weights of 8 bits, in units of the weights' scale. */
INLINE void multiply_group(const int num_rows, f32x16 *part, const Rows *rows, int k,
                           const uint8_t *codes)
{
    const int G = rows->num_inputs / INPUT_GROUP, g = k / INPUT_GROUP;
    i32x16 dots[MOST_ROWS];
    for (int row = 0; row < num_rows; row++)
        dots[row] = all_words(rows->offsets[row * G + g]);
    for (int i = 0; i < INPUT_GROUP; i += 4) {
        u32x16 four_each = load_bits(codes + i * LANES);
        for (int row = 0; row < num_rows; row++)
            dots[row] = dot_bytes(dots[row], four_each, four_inputs(rows, row, k + i));
    }
    for (int row = 0; row < num_rows; row++)
        part[row] += __builtin_convertvector(dots[row], f32x16) * rows->scales[row * G + g];
}

INLINE void multiply_bytes(const int num_rows, const Rows *rows, Block block, f32x16 *out)
{
    f32x16 total[MOST_ROWS];
    for (int row = 0; row < num_rows; row++)
        total[row] = all(0);
    for (int k = 0; k < rows->num_inputs; k += WEIGHT_GROUP, block.scales += LANES) {
        f32x16 part[MOST_ROWS];
        for (int row = 0; row < num_rows; row++)
            part[row] = all(0);
        for (int i = 0; i < WEIGHT_GROUP; i += INPUT_GROUP)
            multiply_group(num_rows, part, rows, k + i, block.codes + (size_t)(k + i) * LANES);
        f32x16 scale = from_bf16(block.scales);
        for (int row = 0; row < num_rows; row++)
            total[row] += part[row] * scale;
    }
    memcpy(out, total, sizeof(f32x16) * num_rows);
}

/* total += two groups of inputs, from k on, times weights of 4 bits. */
INLINE void multiply_two_groups(const int num_rows, f32x16 *total, const Rows *rows, int k,
                                const uint8_t *codes, const uint16_t *scales)
{
    const int G = rows->num_inputs / INPUT_GROUP, g = k / INPUT_GROUP;
    i32x16 low[MOST_ROWS], high[MOST_ROWS];
    for (int row = 0; row < num_rows; row++)
        low[row] = high[row] = all_words(0);
    for (int i = 0; i < INPUT_GROUP; i += 4) {
        u32x16 both = load_bits(codes + i * LANES), mask = (u32x16)all_words(0x0F0F0F0F);
        for (int row = 0; row < num_rows; row++) {
            low[row] = dot_bytes(low[row], both & mask, four_inputs(rows, row, k + i));
            high[row] = dot_bytes(high[row], both >> 4 & mask,
                                  four_inputs(rows, row, k + INPUT_GROUP + i));
        }
    }
    f32x16 low_scale = from_half(scales), high_scale = from_half(scales + LANES);
    for (int row = 0; row < num_rows; row++) {
        const float *scale = rows->scales + row * G + g;
        total[row] += __builtin_convertvector(low[row], f32x16) * (low_scale * scale[0]);
        total[row] += __builtin_convertvector(high[row], f32x16) * (high_scale * scale[1]);
    }
}

/* What the least weights add: pairs of groups' sums times pairs of least weights. The tile unit, if
 * there is one, takes some pairs at once and adds up their firsts and their seconds; so do these. */
INLINE void multiply_least(const int num_rows, f32x16 *total, const Rows *rows,
                           const uint16_t *scales)
{
    const int G = rows->num_inputs / INPUT_GROUP, S = num_sums(rows->num_inputs);
    f32x16 first[MOST_ROWS], second[MOST_ROWS];
    for (int row = 0; row < num_rows; row++)
        total[row] = first[row] = second[row] = all(0);
    for (int g = 0; g < G; g += 2) {
        u32x16 least = load_bits(scales + (2 * g + 2) * LANES);
        for (int row = 0; row < num_rows; row++) {
            uint32_t sums = load_word(rows->sums + row * S + g);
#ifdef __AMX_BF16__
            u32x16 both = (u32x16)all_words((int32_t)sums);
            first[row] += (f32x16)(both << 16) * (f32x16)(least << 16);
            second[row] += (f32x16)(both & 0xFFFF0000u) * (f32x16)(least & 0xFFFF0000u);
            if ((g + 2) % SUMS_AT_ONCE == 0 || g + 2 == G) {
                total[row] += first[row] + second[row];
                first[row] = second[row] = all(0);
            }
#else
            total[row] = dot_pairs(total[row], least, sums);
#endif
        }
    }
}

INLINE void multiply_nibbles(const int num_rows, const Rows *rows, Block block, f32x16 *out)
{
    f32x16 total[MOST_ROWS];
    multiply_least(num_rows, total, rows, block.scales);
    for (int k = 0; k < rows->num_inputs; k += WEIGHT_GROUP, block.scales += 4 * LANES)
        multiply_two_groups(num_rows, total, rows, k, block.codes + (size_t)k / 2 * LANES,
                            block.scales);
    memcpy(out, total, sizeof(f32x16) * num_rows);
}

#define BY_NUM_ROWS(multiply)                                                                      \
    switch (num_rows) {                                                                            \
    case 1: multiply(1, rows, block, out); break;                                                  \
    case 2: multiply(2, rows, block, out); break;                                                  \
    case 3: multiply(3, rows, block, out); break;                                                  \
    case 4: multiply(4, rows, block, out); break;                                                  \
    case 5: multiply(5, rows, block, out); break;                                                  \
    case 6: multiply(6, rows, block, out); break;                                                  \
    case 7: multiply(7, rows, block, out); break;                                                  \
    default: multiply(MOST_ROWS, rows, block, out);                                                \
    }

static void multiply_few(int bits, const Rows *rows, int num_rows, Block block, f32x16 *out)
{
    if (bits == 4)
        BY_NUM_ROWS(multiply_nibbles)
    else
        BY_NUM_ROWS(multiply_bytes)
}

void multiply_by_vectors(int bits, const Rows *rows, int num_rows, Block block, f32x16 *out)
{
    for (int row = 0; row < num_rows; row += MOST_ROWS) {
        Rows some = rows_from(rows, row);
        int left = num_rows - row;
        multiply_few(bits, &some, left < MOST_ROWS ? left : MOST_ROWS, block, out + row);
    }
}
