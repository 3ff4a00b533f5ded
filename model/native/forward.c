/* In reading order: what a step works with, a layer from its norm to its residual, the step. */
#include "forward.h"

#include <math.h>
#include <string.h>

#include "blocks.h"
#include "rows.h"

#define FEW_ROWS 64
#define STAGGER 16     /* floats, so that rows don't all want the same places of a cache */

typedef struct {
    const Model *model;
    const Batch *batch;
    State *state;
    int num_rows;
    int padded_dim;    /* D, padded to whole HEAD_STEPs */
    int stride;        /* of `wide` */
    float *x;          /* [T][W], the residual stream */
    float *wide;       /* [T][stride]: queries, keys and values; or the feed-forward's inside */
    float *attended;   /* [T][H * D] */
    float *rotation;   /* [T][D] */
    Factor *queries;   /* [T][H][padded_dim] */
    Quantized inputs;  /* of the next product */
    Tile *tiles;
    int num_tiles;
    uint16_t *pool;     /* the part of the layer at hand in the first page */
    size_t page_stride; /* to its part of the next one */
    float *out;
} Step;

static size_t divide(Step *step, char *memory)
{
    const Model *model = step->model;
    const size_t T = (size_t)step->num_rows, H = (size_t)model->num_heads;
    const size_t D = (size_t)model->head_dim, F = (size_t)model->intermediate_size;
    const size_t heads = H + 2 * (size_t)model->num_kv_heads, W = (size_t)model->hidden_size;
    const size_t width = heads * D > F ? heads * D : F, stride = width + STAGGER;
    const size_t K = ((width > W ? width : W) + WEIGHT_GROUP - 1) / WEIGHT_GROUP * WEIGHT_GROUP;
    size_t used = 0;
    step->padded_dim = (int)((D + HEAD_STEP - 1) / HEAD_STEP * HEAD_STEP);
    step->stride = (int)stride;
    step->x = part(memory, &used, T * W, sizeof(float));
    step->wide = part(memory, &used, T * stride, sizeof(float));
    step->attended = part(memory, &used, T * H * D, sizeof(float));
    step->rotation = part(memory, &used, T * D, sizeof(float));
    step->queries = part(memory, &used, T * H * (size_t)step->padded_dim, sizeof(Factor));
    step->inputs.codes = part(memory, &used, T * K, CODES_EACH);
    step->inputs.scales = part(memory, &used, T * K / INPUT_GROUP, sizeof(float));
    step->inputs.offsets = part(memory, &used, T * K / INPUT_GROUP, sizeof(int32_t));
    step->inputs.sums = part(memory, &used, T * K / INPUT_GROUP, sizeof(Factor));
    step->tiles = part(memory, &used, (size_t)step->num_tiles, sizeof(Tile));
    return used;
}

static int allocate(Step *step)
{
    char *memory = reserve(step->state, divide(step, NULL));
    if (memory == NULL)
        return -1;
    divide(step, memory);
    return 0;
}

/* Work that is done row by row, and what it is done with. */
typedef struct Rows Rows;
struct Rows {
    Step *step;
    void (*work)(const Rows *rows, int row);
    const float *from;
    int num_values, stride;
    const float *weight; /* of a norm */
    const Matrix *next;
};

/* Of a long prompt, a page's tokens at a time, as their keys share cache lines. */
static int rows_an_item(const Step *step)
{
    return step->num_rows < FEW_ROWS ? 4 : PAGE_SIZE;
}

static void do_rows(void *context, int item)
{
    const Rows *rows = context;
    const int each = rows_an_item(rows->step), stop = (item + 1) * each;
    for (int row = item * each; row < stop && row < rows->step->num_rows; row++)
        rows->work(rows, row);
}

static void each_row(Rows rows, Phase phase)
{
    const int each = rows_an_item(rows.step), num_items = (rows.step->num_rows + each - 1) / each;
    share(rows.step->state->team, num_items, do_rows, &rows);
    mark(rows.step->state, phase);
}

static void quantize_one(const Rows *rows, int row)
{
    const float *from = rows->from + (size_t)row * rows->stride;
    quantize_row(from, rows->num_values, row, &rows->step->inputs, rows->next->num_inputs);
}

static void norm_one(const Rows *rows, int row)
{
    const int W = rows->num_values;
    float normed[W];
    rms_norm(rows->from + (size_t)row * W, rows->weight, W, rows->step->model->norm_eps, normed);
    quantize_row(normed, W, row, &rows->step->inputs, rows->next->num_inputs);
}

static void quantize(Step *step, const float *x, int num_values, int stride, const Matrix *next)
{
    each_row((Rows){step, quantize_one, x, num_values, stride, NULL, next}, NORM);
}

static void norm(Step *step, const float *weight, const Matrix *next)
{
    const int W = step->model->hidden_size;
    each_row((Rows){step, norm_one, step->x, W, W, weight, next}, NORM);
}

static void multiply(Step *step, const Matrix *matrix, Ending ending, float *out, int stride,
                     Phase phase)
{
    product(step->state->team, matrix, &step->inputs, step->num_rows, ending, out, stride);
    mark(step->state, phase);
}

/* A token's queries, turned and made ready. */
static void place_queries(Step *step, int row, float *heads)
{
    const int H = step->model->num_heads, D = step->model->head_dim, padded = step->padded_dim;
    const float scale = 1.44269504f / sqrtf((float)D); /* attention takes powers of 2, not of e */
    Factor *queries = step->queries + (size_t)row * H * padded;
    for (int head = 0; head < H; head++, heads += D, queries += padded) {
        rotate(heads, step->rotation + (size_t)row * D, D / 2);
        to_factors(heads, D, scale, queries);
        memset(queries + D, 0, sizeof(Factor) * (size_t)(padded - D));
    }
}

/* A token's keys, turned, and its values: to its slot in the cache. */
static void cache(Step *step, int row, float *keys)
{
    const int K = step->model->num_kv_heads, D = step->model->head_dim, padded = step->padded_dim;
    const size_t chunk = (size_t)PAGE_SIZE * padded;
    const int offset = (int)step->batch->offsets[row];
    uint16_t *page = step->pool + (size_t)step->batch->page_ids[row] * step->page_stride;
    uint16_t narrow[D];
    for (int head = 0; head < K; head++) {
        rotate(keys + head * D, step->rotation + (size_t)row * D, D / 2);
        to_bf16(keys + head * D, D, narrow);
        write_key(page + 2 * head * chunk, offset, narrow, D);
        to_bf16(keys + (K + head) * D, D, narrow);
        write_value(page + (2 * head + 1) * chunk, padded, offset, narrow, D);
    }
}

static void place_one(const Rows *rows, int row)
{
    Step *step = rows->step;
    float *heads = step->wide + (size_t)row * step->stride;
    place_queries(step, row, heads);
    cache(step, row, heads + step->model->num_heads * step->model->head_dim);
}

static void attend_all(Step *step)
{
    const Model *model = step->model;
    Attention attention = {
        .batch = step->batch,
        .tiles = step->tiles,
        .num_tiles = step->num_tiles,
        .num_heads = model->num_heads,
        .num_kv_heads = model->num_kv_heads,
        .head_dim = step->padded_dim,
        .queries = step->queries,
        .pool = step->pool,
        .page_stride = step->page_stride,
        .out = step->attended,
        .out_stride = model->num_heads * model->head_dim,
        .out_dim = model->head_dim,
    };
    attend(step->state->team, &attention);
    mark(step->state, ATTEND);
}

/*  qkv of a token:   │ queries: H │ keys: K │ values: K │ heads
 *                    └─── are rotated ──────┘
 *                                 └─── are cached ──────┘
 */
static void attention_of(Step *step, const Layer *layer)
{
    norm(step, layer->attention_norm, &layer->qkv);
    multiply(step, &layer->qkv, STORE, step->wide, step->stride, QKV);
    each_row((Rows){.step = step, .work = place_one}, ROTATE);
    attend_all(step);
}

/* The rest of a layer, in which no token sees another. */
static void rest_of(Step *step, const Layer *layer)
{
    const int W = step->model->hidden_size, F = step->model->intermediate_size;
    const int HD = step->model->num_heads * step->model->head_dim;
    quantize(step, step->attended, HD, HD, &layer->output);
    multiply(step, &layer->output, ADD, step->x, W, OUTPUT);
    norm(step, layer->feed_forward_norm, &layer->gate_up);
    multiply(step, &layer->gate_up, SWIGLU, step->wide, step->stride, GATE_UP);
    quantize(step, step->wide, F, step->stride, &layer->down);
    multiply(step, &layer->down, ADD, step->x, W, DOWN);
}

/* Calls move(step, from, to) for each token whose output is asked for, the to-th of those; how many
 * there are. */
static int each_wanted(Step *step, void (*move)(Step *step, size_t from, size_t to))
{
    const Batch *batch = step->batch;
    size_t stop = 0, to = 0;
    for (int64_t s = 0; s < batch->num_sequences; s++) {
        stop += (size_t)batch->query_lens[s];
        for (size_t from = stop - (size_t)batch->wanted_lens[s]; from < stop; from++)
            move(step, from, to++);
    }
    return (int)to;
}

static void move_up(Step *step, size_t from, size_t to)
{
    const size_t W = (size_t)step->model->hidden_size;
    const size_t HD = (size_t)step->model->num_heads * (size_t)step->model->head_dim;
    memmove(step->x + to * W, step->x + from * W, W * sizeof(float));
    memmove(step->attended + to * HD, step->attended + from * HD, HD * sizeof(float));
}

static void hand_out(Step *step, size_t from, size_t to)
{
    const size_t W = (size_t)step->model->hidden_size;
    memcpy(step->out + from * W, step->x + to * W, W * sizeof(float));
}

/* The others' keys and values are all that is left to compute of the last layer. */
static void run_last_layer(Step *step, const Layer *layer)
{
    const int G = step->model->num_heads / step->model->num_kv_heads;
    step->num_tiles = make_tiles(step->batch, step->batch->wanted_lens, G, step->tiles);
    attention_of(step, layer);
    step->num_rows = each_wanted(step, move_up);
    rest_of(step, layer);
}

static void look_up(const Model *model, size_t token, float *x)
{
    const size_t W = (size_t)model->hidden_size, num_blocks = W / INPUT_GROUP;
    const int each = model->embedding_block_bytes;
    if (each == 0)
        memcpy(x, (const float *)model->embedding + token * W, W * sizeof(float));
    else
        decode_blocks((const uint8_t *)model->embedding + token * num_blocks * each,
                      (int)num_blocks, each, x);
}

static void embed_one(const Rows *rows, int row)
{
    Step *step = rows->step;
    const Model *model = step->model;
    const size_t W = (size_t)model->hidden_size, D = (size_t)model->head_dim;
    look_up(model, (size_t)step->batch->token_ids[row], step->x + row * W);
    rotation_at(step->batch->positions[row], model->frequency, (int)D / 2, step->rotation + row * D);
}

void pack_matrix(State *state, const void *weights, int num_rows, int num_values, int block_bytes,
                 Matrix *matrix, int first_block, int step)
{
    begin_step(state);
    if (block_bytes > 0)
        pack_blocks(state->team, weights, num_rows, num_values, block_bytes, matrix, first_block,
                    step);
    else
        pack_rows(state->team, weights, num_rows, num_values, matrix, first_block, step);
    end_step(state);
}

int forward_hidden(const Model *model, State *state, const Batch *batch, uint16_t *pool,
                   float *out)
{
    const int G = model->num_heads / model->num_kv_heads;
    Step step = {.model = model, .batch = batch, .state = state, .pool = pool, .out = out};
    step.num_rows = (int)batch->num_tokens;
    step.num_tiles = make_tiles(batch, batch->query_lens, G, NULL);
    if (allocate(&step) != 0)
        return -1;
    make_tiles(batch, batch->query_lens, G, step.tiles);
    const size_t part = 2 * (size_t)model->num_kv_heads * PAGE_SIZE * step.padded_dim;
    step.page_stride = (size_t)model->num_layers * part;
    begin_step(state);
    each_row((Rows){.step = &step, .work = embed_one}, ROTATE);
    const int last = model->num_layers - 1;
    for (int layer = 0; layer < last; layer++) {
        attention_of(&step, &model->layers[layer]);
        rest_of(&step, &model->layers[layer]);
        step.pool += part;
    }
    run_last_layer(&step, &model->layers[last]);
    end_step(state);
    each_wanted(&step, hand_out);
    return 0;
}

int forward_logits(const Model *model, State *state, const float *x, int64_t num_rows, float *out)
{
    Step step = {.model = model, .state = state, .num_rows = (int)num_rows};
    if (allocate(&step) != 0)
        return -1;
    memcpy(step.x, x, (size_t)num_rows * model->hidden_size * sizeof(float));
    begin_step(state);
    norm(&step, model->norm, &model->head);
    multiply(&step, &model->head, STORE, out, model->vocab_size, HEAD);
    end_step(state);
    return 0;
}
