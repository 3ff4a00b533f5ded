/* The product itself: who computes which part of it, and what becomes of the results. */
#include "product.h"

#include "multiply.h"

#define BLOCKS_AN_ITEM 4 /* of work */
#define ROWS_AN_ITEM 128 /* whose inputs stay in a core's cache while the matrix passes by */
#define SMALL_MATRIX (2 << 20) /* bytes of codes, which stay in a core's cache */

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
    int rows_each;  /* of an item */
} Job;

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

/* Asks for the places of a row's results, which are far from each other, while they are computed. */
static void await_rows(const float *out, int num_rows, int stride)
{
    for (int row = 0; row < num_rows; row++)
        __builtin_prefetch(out + (size_t)row * stride, 1);
}

static void compute_rows(const Job *job, int block, int count, int first, int num_rows)
{
    Outputs y[2 * ROWS_AT_ONCE]; /* the second block's begin in the middle */
    const int is_pair = job->ending == SWIGLU, place = is_pair ? block / 2 : block;
    float *out = job->out + (size_t)first * job->out_stride + place * BLOCK;
    await_rows(out, num_rows, job->out_stride);
    multiply_blocks(job->matrix, block, count, job->inputs, first, num_rows, y);
    int left = job->matrix->num_outputs / (is_pair ? 2 : 1) - place * BLOCK;
    if (is_pair) {
        end_pair(y, y + ROWS_AT_ONCE, num_rows);
        count = 1;
    }
    for (int i = 0; i < count; i++, left -= BLOCK)
        end_block(y + i * ROWS_AT_ONCE, num_rows, left < BLOCK ? left : BLOCK, job->ending == ADD,
                  out + i * BLOCK, job->out_stride);
}

static void compute_item(void *context, int item)
{
    const Job *job = context;
    int first_block = item % job->num_chunks * BLOCKS_AN_ITEM;
    int stop_block = first_block + BLOCKS_AN_ITEM;
    int first_row = item / job->num_chunks * job->rows_each, stop_row = first_row + job->rows_each;
    if (stop_block > job->num_blocks)
        stop_block = job->num_blocks;
    if (stop_row > job->num_rows)
        stop_row = job->num_rows;
    for (int block = first_block; block < stop_block; block += 2)
        for (int row = first_row; row < stop_row; row += ROWS_AT_ONCE) {
            int left = stop_row - row, some = left < ROWS_AT_ONCE ? left : ROWS_AT_ONCE;
            compute_rows(job, block, stop_block - block < 2 ? 1 : 2, row, some);
        }
}

/* By a small matrix, each thread multiplies rows of its own, if there are enough: so what it does
 * next with a row finds the whole of it in its own cache. */
static int rows_an_item(const Team *team, const Matrix *matrix, int num_rows)
{
    int parts = (num_rows + ROWS_AN_ITEM - 1) / ROWS_AN_ITEM, threads = team_size(team);
    size_t code_bytes = (size_t)matrix->num_inputs * matrix->num_outputs * matrix->bits / 8;
    if (code_bytes <= SMALL_MATRIX && num_rows >= threads * OWN_ROWS)
        parts = (parts + threads - 1) / threads * threads;
    int each = (num_rows + parts - 1) / parts;
    return (each + ROW_STEP - 1) / ROW_STEP * ROW_STEP;
}

void product(Team *team, const Matrix *matrix, const Quantized *inputs, int num_rows, Ending ending,
             float *out, int out_stride)
{
    if (num_rows == 0)
        return;
    int blocks = num_blocks(matrix, ending);
    int num_chunks = (blocks + BLOCKS_AN_ITEM - 1) / BLOCKS_AN_ITEM;
    int each = rows_an_item(team, matrix, num_rows);
    Job job = {matrix, inputs, num_rows, ending, out, out_stride, blocks, num_chunks, each};
    share(team, num_chunks * ((num_rows + each - 1) / each), compute_item, &job);
}
