/* By the tile unit: sixteen rows of inputs times sixteen outputs, over one group of inputs, by one
 * instruction, which gives the same integers as the vectors' products. Vectors unpack weights of 4
 * bits before, and apply the scales after.
 *
 *     tiles     sums of a group, the next │ inputs: a group, the next │ codes of a block, of the next
 *     number    0                1        │ 2                3        │ 4, 5              6, 7
 */
#include "multiply.h"

#ifdef __AMX_INT8__

#include "tiles.h"

#define FOURS (INPUT_GROUP / 4)
#define LEAST_ROWS 8 /* fewer are as fast by vectors */

/* What all rows need of a block for two groups of inputs. */
typedef struct {
    u32s codes[2][FOURS]; /* of 4 bits, unpacked: of a group and the next */
    f32s scales[2];       /* of 8 bits only one, for both groups */
} Weights;

typedef struct {
    i32s group[2][TILE_ROWS];
} Sums;

INLINE void unpack(const uint8_t *codes, Weights *to)
{
    const u32s mask = (u32s)all_words(0x0F0F0F0F);
    for (int i = 0; i < FOURS; i++) {
        u32s both = load_bits(codes + i * sizeof both);
        to->codes[0][i] = both & mask;
        to->codes[1][i] = both >> 4 & mask;
    }
}

#define LOAD_CODES(tile, next_tile, codes)                                                         \
    _tile_loadd(tile, codes, LANES * 4);                                                           \
    _tile_loadd(next_tile, (const char *)(codes) + FOURS * LANES * 4, LANES * 4);

INLINE void load_inputs(const Rows *rows, int row, int k)
{
    const int8_t *codes = rows->codes + (size_t)row * rows->num_inputs + k;
    _tile_loadd(2, codes, rows->num_inputs);
    _tile_loadd(3, codes + INPUT_GROUP, rows->num_inputs);
}

#define SUM_TILES(codes, next_codes, sums)                                                         \
    _tile_zero(0);                                                                                 \
    _tile_dpbsud(0, 2, codes);                                                                     \
    _tile_stored(0, (sums)->group[0], sizeof(i32s));                                               \
    _tile_zero(1);                                                                                 \
    _tile_dpbsud(1, 3, next_codes);                                                                \
    _tile_stored(1, (sums)->group[1], sizeof(i32s));

/* In the order of multiply_rows.c. */
INLINE void scale_tile(const int bits, const Rows *rows, int row, int num_rows, int k,
                       const Sums *sums, const Weights *of, f32s *out)
{
    const int G = rows->num_inputs / INPUT_GROUP;
    const size_t at = (size_t)row * G + k / INPUT_GROUP;
    const float *scales = rows->scales + at;
    const int32_t *offsets = rows->offsets + at;
#pragma GCC unroll 2 /* more would take more registers for addresses than there are */
    for (int i = 0; i < num_rows; i++, scales += G, offsets += G) {
        i32s first = sums->group[0][i], second = sums->group[1][i];
        if (bits == 4) {
            f32s total = out[i];
            total += __builtin_convertvector(first, f32s) * (of->scales[0] * scales[0]);
            total += __builtin_convertvector(second, f32s) * (of->scales[1] * scales[1]);
            out[i] = total;
        } else {
            f32s part = all(0);
            part += __builtin_convertvector(first + offsets[0], f32s) * scales[0];
            part += __builtin_convertvector(second + offsets[1], f32s) * scales[1];
            out[i] += part * of->scales[0];
        }
    }
}

/* A block's sums with a tile of rows are scaled while the unit works on the next ones. Both together
 * fill 4 KiB: of two addresses that differ by a multiple of that, the processor takes a load from
 * one for a load from the other, where a store is on its way, and has it wait. */
INLINE void multiply(const int bits, const int num_blocks, const Rows *rows, int num_rows,
                     const int rows_each, Block block, f32s *out)
{
    const size_t K = (size_t)rows->num_inputs;
    Weights weights[2];
    Sums sums[2];
    const int last = num_blocks - 1;
    for (size_t k = 0; k < K; k += WEIGHT_GROUP) {
        const void *codes[2];
        for (size_t i = 0; i < (size_t)num_blocks; i++) {
            const size_t at = (i * K + k) * LANES;
            if (bits == 4) {
                const uint16_t *scales = block.scales + at / WEIGHT_GROUP * 4;
                unpack(block.codes + at / 2, &weights[i]);
                codes[i] = weights[i].codes;
                weights[i].scales[0] = from_half(scales);
                weights[i].scales[1] = from_half(scales + LANES);
            } else {
                codes[i] = block.codes + at;
                weights[i].scales[0] = from_bf16(block.scales + at / WEIGHT_GROUP);
            }
        }
        LOAD_CODES(4, 5, codes[0])
        if (num_blocks == 2) {
            LOAD_CODES(6, 7, codes[1])
        }
        int before = 0, turn = 0;
        for (int row = 0; row < num_rows; before = row, row += rows_each) {
            load_inputs(rows, row, (int)k);
            SUM_TILES(4, 5, &sums[turn])
            if (row > 0)
                scale_tile(bits, rows, before, rows_each, (int)k, &sums[turn ^ 1], &weights[last],
                           out + last * ROWS_AT_ONCE + before);
            turn ^= 1;
            if (num_blocks == 2) {
                SUM_TILES(6, 7, &sums[turn])
                scale_tile(bits, rows, row, rows_each, (int)k, &sums[turn ^ 1], &weights[0],
                           out + row);
                turn ^= 1;
            }
        }
        scale_tile(bits, rows, before, rows_each, (int)k, &sums[turn ^ 1], &weights[last],
                   out + last * ROWS_AT_ONCE + before);
    }
}

/* What the least weights of a block add; out is all that was there before. */
static void multiply_least(const Rows *rows, int num_rows, int rows_each, const uint16_t *scales,
                           f32s *out)
{
    const int G = rows->num_inputs / INPUT_GROUP, S = num_sums(rows->num_inputs);
    for (int g = 0; g < G; g += SUMS_AT_ONCE) {
        u32s least[SUMS_AT_ONCE / 2] = {};
        for (int i = 0; 2 * i < SUMS_AT_ONCE && g + 2 * i < G; i++)
            least[i] = load_bits(scales + (2 * g + 4 * i + 2) * LANES);
        _tile_loadd(4, least, sizeof *least);
        for (int row = 0; row < num_rows; row += rows_each) {
            _tile_loadd(0, out + row, sizeof *out);
            _tile_loadd(2, rows->sums + (size_t)row * S + g, S * sizeof(uint16_t));
            _tile_dpbf16ps(0, 2, 4);
            _tile_stored(0, out + row, sizeof *out);
        }
    }
}

/* num_rows is a multiple of rows_each, which is TILE_ROWS at most. */
INLINE void multiply_alike(int bits, const Rows *rows, int num_rows, const int rows_each,
                           Block block, int num_blocks, f32s *out)
{
    const size_t scales_each = (size_t)rows->num_inputs / WEIGHT_GROUP * 4 * LANES;
    shape_tiles(rows_each, FOURS, FOURS);
    for (int i = 0; i < num_blocks; i++) {
        f32s *sums = memset(out + i * ROWS_AT_ONCE, 0, sizeof(f32s) * (size_t)num_rows);
        if (bits == 4)
            multiply_least(rows, num_rows, rows_each, block.scales + i * scales_each, sums);
    }
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
                      Outputs *outputs)
{
    f32s *out = &outputs->part[0]; /* one vector each */
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
                      Outputs *out)
{
    (void)bits, (void)rows, (void)num_rows, (void)block, (void)num_blocks, (void)out;
    return 0;
}

#endif
