/* By the tile unit: sixteen rows of inputs times sixteen outputs, over 64 inputs, by one instruction.
 *
 *     tiles     sums of upper codes, of lower ones │ inputs' upper   │ codes of a block,
 *               with a block; with the next block  │ and lower codes │ of the next
 *     number    0, 1; 2, 3                         │ 4, 5            │ 6, 7
 */
#include "multiply.h"

#ifdef HAS_TILES

#include "tiles.h"

#define INPUTS_AT_ONCE 64
#define FEW 4 /* rows */
#define UPPER 256.0f /* what an upper code's unit is in lower ones */

_Thread_local TileShapes tile_shapes;

typedef struct {
    i32s upper[TILE_ROWS], lower[TILE_ROWS];
} Sums;

static void shape_for(int num_rows)
{
    TileShapes shapes = {.palette = 1};
    for (int tile = 0; tile < NUM_TILES; tile++) {
        shapes.row_bytes[tile] = 64;
        shapes.num_rows[tile] = (uint8_t)(tile < 6 ? num_rows : INPUTS_AT_ONCE / 4);
    }
    use_shapes(&shapes);
}

/* Of a tile of rows, whose upper codes come first, with one block or two. */
INLINE void sum_by_tiles(const int num_blocks, size_t K, const int8_t *inputs,
                         const uint8_t *codes, Sums *sums)
{
    _tile_zero(0);
    _tile_zero(1);
    if (num_blocks == 2) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (size_t k = 0; k < K; k += INPUTS_AT_ONCE) {
        _tile_loadd(4, inputs + k, 2 * K);
        _tile_loadd(6, codes + k * BLOCK, 4 * BLOCK);
        _tile_dpbsud(0, 4, 6);
        _tile_loadd(5, inputs + K + k, 2 * K);
        _tile_dpbsud(1, 5, 6);
        if (num_blocks == 2) {
            _tile_loadd(7, codes + (K + k) * BLOCK, 4 * BLOCK);
            _tile_dpbsud(2, 4, 7);
            _tile_dpbsud(3, 5, 7);
        }
    }
    _tile_stored(0, sums[0].upper, sizeof(i32s));
    _tile_stored(1, sums[0].lower, sizeof(i32s));
    if (num_blocks == 2) {
        _tile_stored(2, sums[1].upper, sizeof(i32s));
        _tile_stored(3, sums[1].lower, sizeof(i32s));
    }
}

/* Few rows wait for the weights, which vectors read faster. What has the same place in num_chains
 * fours of inputs is added up by itself, as a product takes longer than the time between two. */
INLINE void sum_by_vectors(const int num_rows, const int num_chains, size_t K,
                           const int8_t *inputs, const uint8_t *codes, Sums *sums)
{
    i32s upper[num_chains][num_rows], lower[num_chains][num_rows];
    for (int chain = 0; chain < num_chains; chain++)
        for (int row = 0; row < num_rows; row++)
            upper[chain][row] = lower[chain][row] = all_words(0);
    for (size_t k = 0; k < K; k += 4 * num_chains)
        for (int chain = 0; chain < num_chains; chain++) {
            const u32s four_each = load_bits(codes + (k + 4 * chain) * BLOCK);
            for (int row = 0; row < num_rows; row++) {
                const int8_t *four = inputs + row * 2 * K + k + 4 * chain;
                upper[chain][row] = dot_bytes(upper[chain][row], four_each, load_word(four));
                lower[chain][row] = dot_bytes(lower[chain][row], four_each, load_word(four + K));
            }
        }
    for (int row = 0; row < num_rows; row++) {
        sums->upper[row] = upper[0][row];
        sums->lower[row] = lower[0][row];
        for (int chain = 1; chain < num_chains; chain++) {
            sums->upper[row] += upper[chain][row];
            sums->lower[row] += lower[chain][row];
        }
    }
}

static void sum_few(int num_rows, size_t K, const int8_t *inputs, const uint8_t *codes, Sums *sums)
{
    switch (num_rows) {
    case 1: sum_by_vectors(1, 4, K, inputs, codes, sums); break;
    case 2: sum_by_vectors(2, 2, K, inputs, codes, sums); break;
    case 3: sum_by_vectors(3, 2, K, inputs, codes, sums); break;
    default: sum_by_vectors(4, 1, K, inputs, codes, sums);
    }
}

INLINE void scale_sums(const Sums *sums, int num_rows, const float *scales, const int32_t *offsets,
                       const uint16_t *weight_scales, Outputs *out)
{
    const f32s weight_scale = from_bf16(weight_scales);
    for (int row = 0; row < num_rows; row++) {
        f32s sum = __builtin_convertvector(sums->upper[row] + offsets[2 * row], f32s) * UPPER;
        sum += __builtin_convertvector(sums->lower[row] + offsets[2 * row + 1], f32s);
        out[row].part[0] = sum * (weight_scale * scales[row]);
    }
}

/* Of TILE_ROWS rows or fewer, for which the tiles are shaped if they are more than FEW. */
INLINE void multiply_rows(const Matrix *matrix, int index, const int num_blocks,
                          const Quantized *inputs, size_t row, int num_rows, Outputs *out)
{
    const size_t K = (size_t)matrix->num_inputs;
    const int8_t *input_codes = inputs->codes + row * 2 * K;
    const uint8_t *codes = matrix->codes + index * K * BLOCK;
    Sums sums[2];
    if (num_rows > FEW)
        sum_by_tiles(num_blocks, K, input_codes, codes, sums);
    else
        for (int i = 0; i < num_blocks; i++)
            sum_few(num_rows, K, input_codes, codes + i * K * BLOCK, &sums[i]);
    for (int i = 0; i < num_blocks; i++)
        scale_sums(&sums[i], num_rows, inputs->scales + row, inputs->offsets + 2 * row,
                   matrix->scales + (index + i) * BLOCK, out + i * ROWS_AT_ONCE);
}

void multiply_blocks(const Matrix *matrix, int index, int num_blocks, const Quantized *inputs,
                     int first_row, int num_rows, Outputs *out)
{
    if (num_rows > FEW)
        shape_for(num_rows);
    if (num_blocks == 2)
        multiply_rows(matrix, index, 2, inputs, first_row, num_rows, out);
    else
        multiply_rows(matrix, index, 1, inputs, first_row, num_rows, out);
}

#endif
