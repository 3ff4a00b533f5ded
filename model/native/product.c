/* The product itself: who computes which part of it, and what becomes of the results. */
#include "product.h"

#include "multiply.h"

#define BLOCKS_AT_ONCE 4 /* of a matrix, in one item of work */

static int num_blocks(const Matrix *matrix, Ending ending)
{
    int parts = ending == SWIGLU ? 2 : 1;
    return parts * ((matrix->num_outputs / parts + BLOCK - 1) / BLOCK);
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

/* Rows of a block or two: y, of which the second's begin at ROWS_AT_ONCE. */
static void multiply_blocks(const Job *job, int index, int count, int first, int num_rows,
                            Outputs *y)
{
    const Matrix *matrix = job->matrix;
    const Quantized *inputs = job->inputs;
    const size_t K = (size_t)matrix->num_inputs, is_small = matrix->bits == 4;
    const size_t codes_each = K * BLOCK >> is_small;
    const size_t scales_each = K / WEIGHT_GROUP * BLOCK << 2 * is_small;
    const Rows whole = {inputs->codes, inputs->scales, inputs->offsets, inputs->sums,
                        matrix->num_inputs};
    const Rows rows = rows_from(&whole, first);
    Block block = {matrix->codes + index * codes_each, matrix->scales + index * scales_each};
    int done = multiply_by_tiles(matrix->bits, &rows, num_rows, block, count, y);
    const Rows rest = rows_from(&rows, done);
    for (int i = 0; i < count; i++) {
        multiply_by_vectors(matrix->bits, &rest, num_rows - done, block, y + i * ROWS_AT_ONCE + done);
        block = (Block){block.codes + codes_each, block.scales + scales_each};
    }
}

/* Where num_outputs ends within a block, the rest of the block is left as it is. */
static void end_block(const Outputs *y, int num_rows, int count, int adds, float *out, int stride)
{
    for (int row = 0; row < num_rows; row++, out += stride)
        for (int n = 0; n < count; n += LANES) {
            const f32s part = y[row].part[n / LANES];
            if (count - n >= LANES)
                store(out + n, adds ? load(out + n) + part : part);
            else
                for (int i = 0; n + i < count; i++)
                    out[n + i] = adds ? out[n + i] + part[i] : part[i];
        }
}

INLINE f32s swiglu(f32s gate, f32s up)
{
    f32s e = exp2_of(-larger(gate * 1.442695041f, all(-126)));
    return gate / (e + 1.0f) * up;
}

static void end_pair(Outputs *gate, const Outputs *up, int num_rows)
{
    for (int row = 0; row < num_rows; row++)
        for (int v = 0; v < VECTORS; v++)
            gate[row].part[v] = swiglu(gate[row].part[v], up[row].part[v]);
}

static void compute_blocks(const Job *job, int block, int count, int first, int num_rows)
{
    Outputs y[2 * ROWS_AT_ONCE];
    multiply_blocks(job, block, count, first, num_rows, y);
    int num_outputs = job->matrix->num_outputs;
    if (job->ending == SWIGLU) {
        end_pair(y, y + ROWS_AT_ONCE, num_rows);
        num_outputs /= 2;
        block /= 2;
        count = 1;
    }
    for (int i = 0; i < count; i++) {
        int n = (block + i) * BLOCK, left = num_outputs - n;
        float *out = job->out + (size_t)first * job->out_stride + n;
        end_block(y + i * ROWS_AT_ONCE, num_rows, left < BLOCK ? left : BLOCK, job->ending == ADD,
                  out, job->out_stride);
    }
}

static void compute_item(void *context, int item)
{
    const Job *job = context;
    int first_block = item % job->num_chunks * BLOCKS_AT_ONCE;
    int stop_block = first_block + BLOCKS_AT_ONCE;
    int first_row = item / job->num_chunks * ROWS_AT_ONCE, rows_left = job->num_rows - first_row;
    if (stop_block > job->num_blocks)
        stop_block = job->num_blocks;
    for (int block = first_block; block < stop_block; block += 2)
        compute_blocks(job, block, stop_block - block < 2 ? 1 : 2, first_row,
                       rows_left < ROWS_AT_ONCE ? rows_left : ROWS_AT_ONCE);
}

void product(Team *team, const Matrix *matrix, const Quantized *inputs, int num_rows, Ending ending,
             float *out, int out_stride)
{
    int blocks = num_blocks(matrix, ending);
    int num_chunks = (blocks + BLOCKS_AT_ONCE - 1) / BLOCKS_AT_ONCE;
    Job job = {matrix, inputs, num_rows, ending, out, out_stride, blocks, num_chunks};
    share(team, num_chunks * ((num_rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE), compute_item, &job);
}
