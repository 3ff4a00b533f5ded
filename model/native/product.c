/* The product itself: up to eight rows at a time, so that they share each load of weights. */
#include "product.h"

#include "vector.h"

#define TILE_ROWS 8
#define BLOCKS_AT_ONCE 4 /* of a matrix, in one item of work */
#define ROWS_AT_ONCE 128 /* whose inputs stay in a core's cache while the matrix passes by */

/* Rows of the inputs from the tile's first row on; and a block of the matrix. */
typedef struct {
    const int8_t *codes;
    const float *scales;
    const int32_t *offsets;
    const uint16_t *sums;
    int num_inputs;
} Rows;

typedef struct {
    const uint8_t *codes;
    const uint16_t *scales;
} Block;

/* In these, num_rows is known to the compiler, so that all sums stay in registers. */

INLINE uint32_t four_inputs(const Rows *rows, int row, int k)
{
    return load_word(rows->codes + (size_t)row * rows->num_inputs + k);
}

/* part += the inputs' group at k times weights of 8 bits, in units of the weights' scale. */
INLINE void add_bytes(const int num_rows, f32x16 *part, const Rows *rows, int k,
                      const uint8_t *codes)
{
    const int G = rows->num_inputs / INPUT_GROUP, g = k / INPUT_GROUP;
    i32x16 dots[TILE_ROWS];
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
    f32x16 total[TILE_ROWS];
    for (int row = 0; row < num_rows; row++)
        total[row] = all(0);
    for (int k = 0; k < rows->num_inputs; k += WEIGHT_GROUP, block.scales += LANES) {
        f32x16 part[TILE_ROWS];
        for (int row = 0; row < num_rows; row++)
            part[row] = all(0);
        for (int i = 0; i < WEIGHT_GROUP; i += INPUT_GROUP)
            add_bytes(num_rows, part, rows, k + i, block.codes + (size_t)(k + i) * LANES);
        f32x16 scale = from_bf16(block.scales);
        for (int row = 0; row < num_rows; row++)
            total[row] += part[row] * scale;
    }
    memcpy(out, total, sizeof(f32x16) * num_rows);
}

/* total += two groups of inputs, from k on, times weights of 4 bits. */
INLINE void add_nibbles(const int num_rows, f32x16 *total, const Rows *rows, int k,
                        const uint8_t *codes, const uint16_t *scales)
{
    const int G = rows->num_inputs / INPUT_GROUP, g = k / INPUT_GROUP;
    i32x16 low[TILE_ROWS], high[TILE_ROWS];
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
    u32x16 least = load_bits(scales + 2 * LANES);
    for (int row = 0; row < num_rows; row++) {
        const float *scale = rows->scales + row * G + g;
        total[row] += __builtin_convertvector(low[row], f32x16) * (low_scale * scale[0]);
        total[row] += __builtin_convertvector(high[row], f32x16) * (high_scale * scale[1]);
        total[row] = dot_pairs(total[row], least, load_word(rows->sums + row * G + g));
    }
}

INLINE void multiply_nibbles(const int num_rows, const Rows *rows, Block block, f32x16 *out)
{
    f32x16 total[TILE_ROWS];
    for (int row = 0; row < num_rows; row++)
        total[row] = all(0);
    for (int k = 0; k < rows->num_inputs; k += WEIGHT_GROUP, block.scales += 4 * LANES)
        add_nibbles(num_rows, total, rows, k, block.codes + (size_t)k / 2 * LANES, block.scales);
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
    default: multiply(TILE_ROWS, rows, block, out);                                                \
    }

static void multiply_by_bytes(int num_rows, const Rows *rows, Block block, f32x16 *out)
{
    BY_NUM_ROWS(multiply_bytes)
}

static void multiply_by_nibbles(int num_rows, const Rows *rows, Block block, f32x16 *out)
{
    BY_NUM_ROWS(multiply_nibbles)
}

static int num_blocks(const Matrix *matrix, Ending ending)
{
    int parts = ending == SWIGLU ? 2 : 1;
    return parts * ((matrix->num_outputs / parts + LANES - 1) / LANES);
}

typedef struct {
    const Matrix *matrix;
    const Quantized *inputs;
    int num_rows;
    Ending ending;
    float *out;
    int out_stride;
    int num_blocks;
    int num_chunks; /* of blocks; items go through them first, then to the next rows */
} Job;

static void multiply_block(const Job *job, int index, int first, int num_rows, f32x16 *out)
{
    const Matrix *matrix = job->matrix;
    const size_t K = (size_t)matrix->num_inputs, G = K / INPUT_GROUP;
    const size_t at = (size_t)index * K * LANES, row = (size_t)first;
    const Rows rows = {job->inputs->codes + row * K, job->inputs->scales + row * G,
                       job->inputs->offsets + row * G, job->inputs->sums + row * G, (int)K};
    if (matrix->bits == 4) {
        Block block = {matrix->codes + at / 2, matrix->scales + at / WEIGHT_GROUP * 4};
        multiply_by_nibbles(num_rows, &rows, block, out);
    } else {
        Block block = {matrix->codes + at, matrix->scales + at / WEIGHT_GROUP};
        multiply_by_bytes(num_rows, &rows, block, out);
    }
}

/* Where num_outputs ends within a block, the rest of the block is left as it is. */
static void end_block(const f32x16 *y, int num_rows, int count, int adds, float *out, int stride)
{
    for (int row = 0; row < num_rows; row++, out += stride)
        if (count == LANES)
            store(out, adds ? load(out) + y[row] : y[row]);
        else
            for (int n = 0; n < count; n++)
                out[n] = adds ? out[n] + y[row][n] : y[row][n];
}

static void end_pair(f32x16 *gate, const f32x16 *up, int num_rows)
{
    for (int row = 0; row < num_rows; row++) {
        f32x16 e = exp2_of(-larger(gate[row] * 1.442695041f, all(-126)));
        gate[row] = gate[row] / (e + 1.0f) * up[row];
    }
}

static void compute_tile(const Job *job, int block, int first, int num_rows)
{
    f32x16 y[TILE_ROWS], up[TILE_ROWS];
    multiply_block(job, block, first, num_rows, y);
    int n = block * LANES, num_outputs = job->matrix->num_outputs;
    if (job->ending == SWIGLU) {
        multiply_block(job, block + 1, first, num_rows, up);
        end_pair(y, up, num_rows);
        n /= 2;
        num_outputs /= 2;
    }
    int count = num_outputs - n < LANES ? num_outputs - n : LANES;
    float *out = job->out + (size_t)first * job->out_stride + n;
    end_block(y, num_rows, count, job->ending == ADD, out, job->out_stride);
}

static void compute_item(void *context, int item)
{
    const Job *job = context;
    int first_block = item % job->num_chunks * BLOCKS_AT_ONCE;
    int stop_block = first_block + BLOCKS_AT_ONCE;
    int first_row = item / job->num_chunks * ROWS_AT_ONCE, stop_row = first_row + ROWS_AT_ONCE;
    if (stop_block > job->num_blocks)
        stop_block = job->num_blocks;
    if (stop_row > job->num_rows)
        stop_row = job->num_rows;
    for (int block = first_block; block < stop_block; block += job->ending == SWIGLU ? 2 : 1)
        for (int row = first_row; row < stop_row; row += TILE_ROWS) {
            int left = stop_row - row;
            compute_tile(job, block, row, left < TILE_ROWS ? left : TILE_ROWS);
        }
}

void product(Team *team, const Matrix *matrix, const Quantized *inputs, int num_rows, Ending ending,
             float *out, int out_stride)
{
    int blocks = num_blocks(matrix, ending);
    int num_chunks = (blocks + BLOCKS_AT_ONCE - 1) / BLOCKS_AT_ONCE;
    Job job = {matrix, inputs, num_rows, ending, out, out_stride, blocks, num_chunks};
    share(team, num_chunks * ((num_rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE), compute_item, &job);
}
