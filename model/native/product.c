/* The product itself: up to eight rows at a time, so that they share each load of weights. */
#include "product.h"

#include "vector.h"

#define TILE_ROWS 8
#define BLOCKS_AT_ONCE 4 /* of a matrix, in one item of work */
#define ROWS_AT_ONCE 128 /* whose inputs stay in a core's cache while the matrix passes by */

/* Rows of the inputs from the tile's first row on, and where the block's weights begin. */
typedef struct {
    const int8_t *codes;
    const float *scales;
    const int32_t *offsets;
    int num_inputs;
} Rows;

/* part += the inputs' next group times a block's weights, in units of the weights' scale. */
INLINE void add_group(const int num_rows, f32x16 *part, const Rows *rows, int k,
                      const uint8_t *weights)
{
    const int K = rows->num_inputs, G = K / INPUT_GROUP, g = k / INPUT_GROUP;
    i32x16 dots[TILE_ROWS];
    for (int row = 0; row < num_rows; row++)
        dots[row] = all_words(rows->offsets[row * G + g]);
    for (int i = 0; i < INPUT_GROUP; i += 4) {
        u32x16 four_each = load_bits(weights + i * LANES);
        for (int row = 0; row < num_rows; row++)
            dots[row] = dot_bytes(dots[row], four_each, load_word(rows->codes + row * K + k + i));
    }
    for (int row = 0; row < num_rows; row++)
        part[row] += __builtin_convertvector(dots[row], f32x16) * rows->scales[row * G + g];
}

/* out[row] = a block's outputs. num_rows is known to the compiler, so that all stays in registers. */
INLINE void multiply_tile(const int num_rows, const Rows *rows, const uint8_t *weights,
                          const uint16_t *scales, f32x16 *out)
{
    f32x16 total[TILE_ROWS];
    for (int row = 0; row < num_rows; row++)
        total[row] = all(0);
    for (int k = 0; k < rows->num_inputs; k += WEIGHT_GROUP) {
        f32x16 part[TILE_ROWS];
        for (int row = 0; row < num_rows; row++)
            part[row] = all(0);
        for (int i = 0; i < WEIGHT_GROUP; i += INPUT_GROUP)
            add_group(num_rows, part, rows, k + i, weights + (k + i) * LANES);
        f32x16 scale = from_bf16(scales + k / WEIGHT_GROUP * LANES);
        for (int row = 0; row < num_rows; row++)
            total[row] += part[row] * scale;
    }
    for (int row = 0; row < num_rows; row++)
        out[row] = total[row];
}

static void multiply(int num_rows, const Rows *rows, const uint8_t *weights, const uint16_t *scales,
                     f32x16 *out)
{
    switch (num_rows) {
    case 1: multiply_tile(1, rows, weights, scales, out); break;
    case 2: multiply_tile(2, rows, weights, scales, out); break;
    case 3: multiply_tile(3, rows, weights, scales, out); break;
    case 4: multiply_tile(4, rows, weights, scales, out); break;
    case 5: multiply_tile(5, rows, weights, scales, out); break;
    case 6: multiply_tile(6, rows, weights, scales, out); break;
    case 7: multiply_tile(7, rows, weights, scales, out); break;
    default: multiply_tile(8, rows, weights, scales, out); break;
    }
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

static void multiply_block(const Job *job, int block, int first, int num_rows, f32x16 *out)
{
    const int K = job->matrix->num_inputs;
    const Rows rows = {
        job->inputs->codes + (size_t)first * K,
        job->inputs->scales + (size_t)first * (K / INPUT_GROUP),
        job->inputs->offsets + (size_t)first * (K / INPUT_GROUP),
        K,
    };
    multiply(num_rows, &rows, job->matrix->codes + (size_t)block * K * LANES,
             job->matrix->scales + (size_t)block * (K / WEIGHT_GROUP) * LANES, out);
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
        f32x16 e = exp2_of(larger(gate[row] * -1.442695041f, all(-126)));
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
