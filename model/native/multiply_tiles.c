/* By the tile unit: sixteen rows of inputs times sixteen outputs, over one group of inputs, by one
 * instruction. Its sums of integers are exact in bfloat16's products and float's sums. Vectors unpack
 * the weights before and apply the scales after.
 *
 *     tiles     sums of a group, the next │ inputs: a group, the next │ codes of a block, of the next
 *     number    0                1        │ 2                3        │ 4, 5              6, 7
 */
#include "multiply.h"

#ifdef __AMX_BF16__

#include "tiles.h"

#define PAIRS (INPUT_GROUP / 2)
#define LEAST_ROWS 8 /* fewer are as fast by vectors */

/* What all rows need of a block for two groups of inputs. */
typedef struct {
    u32x16 codes[2][PAIRS]; /* pairs of bfloat16, of a group and the next */
    f32x16 scales[2];       /* of 8 bits only one, for both groups */
} Unpacked;

typedef struct {
    f32x16 group[2][TILE_ROWS];
} Sums;

/* The four halves of bytes in each pair of bytes are two inputs of either group. */
INLINE void unpack_nibbles(const uint8_t *codes, const uint16_t *scales, Unpacked *to)
{
    static const uint16_t bf16_of[32] = {
        0, 0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0,
        0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170,
        0, 0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0, 0x40E0,
        0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170};
    __m512i values = _mm512_loadu_si512(bf16_of);
    for (int i = 0; i < PAIRS; i += 2) {
        __m512i four = _mm512_loadu_si512(codes + i / 2 * LANES * 4);
        to->codes[0][i] = (u32x16)_mm512_permutexvar_epi16(four, values);
        to->codes[0][i + 1] = (u32x16)_mm512_permutexvar_epi16(_mm512_srli_epi16(four, 8), values);
        to->codes[1][i] = (u32x16)_mm512_permutexvar_epi16(_mm512_srli_epi16(four, 4), values);
        to->codes[1][i + 1] = (u32x16)_mm512_permutexvar_epi16(_mm512_srli_epi16(four, 12), values);
    }
    to->scales[0] = from_half(scales);
    to->scales[1] = from_half(scales + LANES);
}

/* A byte of each lane, less 128, in the upper half. */
INLINE u32x16 signed_byte(u32x16 four, int byte)
{
    return (u32x16)(__builtin_convertvector(four >> 8 * byte & 0xFF, f32x16) - 128.0f);
}

INLINE void unpack_bytes(const uint8_t *codes, const uint16_t *scales, Unpacked *to)
{
    for (int i = 0; i < 2 * PAIRS; i += 2) {
        u32x16 four = load_bits(codes + i / 2 * LANES * 4), *pairs = to->codes[i / PAIRS];
        pairs[i % PAIRS] = signed_byte(four, 0) >> 16 | signed_byte(four, 2);
        pairs[i % PAIRS + 1] = signed_byte(four, 1) >> 16 | signed_byte(four, 3);
    }
    to->scales[0] = from_bf16(scales);
}

#define SUM_TILES(codes, next_codes, sums)                                                         \
    _tile_zero(0);                                                                                 \
    _tile_dpbf16ps(0, 2, codes);                                                                   \
    _tile_stored(0, (sums)->group[0], sizeof(f32x16));                                             \
    _tile_zero(1);                                                                                 \
    _tile_dpbf16ps(1, 3, next_codes);                                                              \
    _tile_stored(1, (sums)->group[1], sizeof(f32x16));

INLINE void sum_tiles(const int num_blocks, const Rows *rows, int row, int k, Sums *sums)
{
    const uint16_t *codes = rows->tile_codes + (size_t)row * rows->num_inputs + k;
    const size_t stride = sizeof(uint16_t) * rows->num_inputs;
    _tile_loadd(2, codes, stride);
    _tile_loadd(3, codes + INPUT_GROUP, stride);
    SUM_TILES(4, 5, &sums[0])
    if (num_blocks == 2) {
        SUM_TILES(6, 7, &sums[1])
    }
}

/* In the order of multiply_rows.c. */
INLINE void scale_tile(const int bits, int num_rows, const Sums *sums, const Unpacked *of,
                       const float *scales, int stride, f32x16 *out)
{
    for (int row = 0; row < num_rows; row++, scales += stride) {
        f32x16 first = sums->group[0][row], second = sums->group[1][row], total = out[row];
        if (bits == 4) {
            total += first * (of->scales[0] * scales[0]);
            out[row] = total + second * (of->scales[1] * scales[1]);
        } else {
            f32x16 part = all(0) + first * scales[0];
            part += second * scales[1];
            out[row] = total + part * of->scales[0];
        }
    }
}

/* A tile's sums are scaled while the unit works on the next tile. */
INLINE void multiply(const int bits, const int num_blocks, const Rows *rows, int num_rows,
                     const int rows_each, Block block, f32x16 *out)
{
    const size_t K = (size_t)rows->num_inputs, halves = bits == 4;
    const int G = rows->num_inputs / INPUT_GROUP;
    Unpacked unpacked[2];
    Sums sums[2][2];
    for (size_t k = 0; k < K; k += WEIGHT_GROUP) {
        for (size_t i = 0; i < (size_t)num_blocks; i++) {
            const uint8_t *codes = block.codes + ((i * K + k) * LANES >> halves);
            const uint16_t *weight_scales =
                block.scales + ((i * K + k) / WEIGHT_GROUP * LANES << 2 * halves);
            (bits == 4 ? unpack_nibbles : unpack_bytes)(codes, weight_scales, &unpacked[i]);
        }
        _tile_loadd(4, unpacked[0].codes[0], sizeof(u32x16));
        _tile_loadd(5, unpacked[0].codes[1], sizeof(u32x16));
        if (num_blocks == 2) {
            _tile_loadd(6, unpacked[1].codes[0], sizeof(u32x16));
            _tile_loadd(7, unpacked[1].codes[1], sizeof(u32x16));
        }
        const float *scales = rows->scales + k / INPUT_GROUP;
        for (int row = 0, turn = 0; row < num_rows + rows_each; row += rows_each, turn ^= 1) {
            if (row < num_rows)
                sum_tiles(num_blocks, rows, row, (int)k, sums[turn]);
            for (int i = 0; row > 0 && i < num_blocks; i++)
                scale_tile(bits, rows_each, &sums[turn ^ 1][i], &unpacked[i],
                           scales + (row - rows_each) * G, G,
                           out + i * ROWS_AT_ONCE + row - rows_each);
        }
    }
}

/* What the least weights of a block add. */
static void multiply_least(const Rows *rows, int num_rows, int rows_each, Block block, f32x16 *out)
{
    const int G = rows->num_inputs / INPUT_GROUP;
    for (int g = 0; g < G; g += 2 * PAIRS) {
        int pairs = (G - g < 2 * PAIRS ? G - g : 2 * PAIRS) / 2;
        shape_tiles(rows_each, pairs, pairs);
        _tile_loadd(4, block.scales + (2 * g + 2) * LANES, 4 * LANES * sizeof(uint16_t));
        for (int row = 0; row < num_rows; row += rows_each) {
            _tile_loadd(0, out + row, sizeof(f32x16));
            _tile_loadd(2, rows->sums + (size_t)row * G + g, G * sizeof(uint16_t));
            _tile_dpbf16ps(0, 2, 4);
            _tile_stored(0, out + row, sizeof(f32x16));
        }
    }
}

/* num_rows is a multiple of rows_each, which is TILE_ROWS at most. */
INLINE void multiply_alike(int bits, const Rows *rows, int num_rows, const int rows_each,
                           Block block, int num_blocks, f32x16 *out)
{
    const size_t scales_each = (size_t)rows->num_inputs / WEIGHT_GROUP * 4 * LANES;
    for (int i = 0; i < num_blocks; i++) {
        memset(out + i * ROWS_AT_ONCE, 0, sizeof(f32x16) * (size_t)num_rows);
        const Block one = {block.codes, block.scales + i * scales_each};
        if (bits == 4)
            multiply_least(rows, num_rows, rows_each, one, out + i * ROWS_AT_ONCE);
    }
    shape_tiles(rows_each, PAIRS, PAIRS);
    if (bits == 4 && num_blocks == 2)
        multiply(4, 2, rows, num_rows, rows_each, block, out);
    else if (bits == 4)
        multiply(4, 1, rows, num_rows, rows_each, block, out);
    else if (num_blocks == 2)
        multiply(8, 2, rows, num_rows, rows_each, block, out);
    else
        multiply(8, 1, rows, num_rows, rows_each, block, out);
}

int multiply_by_tiles(int bits, const Rows *rows, int num_rows, Block block, int num_blocks,
                      f32x16 *out)
{
    const int whole = num_rows / TILE_ROWS * TILE_ROWS, rest = num_rows - whole;
    if (whole > 0)
        multiply_alike(bits, rows, whole, TILE_ROWS, block, num_blocks, out);
    if (rest >= LEAST_ROWS) {
        const Rows last = rows_from(rows, whole);
        multiply_alike(bits, &last, rest, rest, block, num_blocks, out + whole);
    }
    if (num_rows >= LEAST_ROWS)
        _tile_release();
    return rest >= LEAST_ROWS ? num_rows : whole;
}

#else

int multiply_by_tiles(int bits, const Rows *rows, int num_rows, Block block, int num_blocks,
                      f32x16 *out)
{
    (void)bits, (void)rows, (void)num_rows, (void)block, (void)num_blocks, (void)out;
    return 0;
}

#endif
