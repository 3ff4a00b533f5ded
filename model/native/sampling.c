/* A race over all tokens first; then, where there are filters, whether they keep its winner.
 *
 * A filter keeps a first part of the tokens in order of falling logit. So if it keeps the winner of
 * all, that wins among those it keeps; and if not, it keeps none but those ahead of it, which race
 * again. Few races are run that way, as a filter seldom drops what was likely to win. Only what a
 * small top-k leaves is listed and sorted before it races.
 *
 * A race looks twice. First, at a ceiling of each score, which is a few operations away from the
 * hash; it keeps the highest of each block. Then, at the blocks that reach the score of the token
 * with the highest ceiling: mostly one.
 *
 *     score    x / temperature - log(-log(1 - u)), where u in (0, 1) is made of 31 bits of a hash
 *     ceiling  x / temperature - log(u), by a logarithm that isn't above the true one: the bits of
 *              a float, as a number, are a straight line from each power of two to the next
 */
#include "sampling.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>

#include "vector.h"

#define BLOCK_VECTORS 32
#define MOST_RACES 32
#define FEW 128
#define MOST_LISTED 1024
#define LIST_ROOM 2048
#define GROUPS_EACH 4 /* of logits for each token listed; the groups' maxima tell where to begin */
#define MOST_GROUPS (2 * GROUPS_EACH * MOST_LISTED + 3 * LANES)
#define LEAST_SHARE 1e-30f /* for top-p and min-p; near 1e-38, products round to 0 in float32 */
#define ROWS_WORTH_WAKING 3

/* Ceilings are counted in what a float's bits rise by: 2^23 where it doubles. */
#define STEPS (0x1p23 / 0.69314718055994531)
#define ONE (127 * 0x1p23)               /* the bits of 1 */
#define BITS_OF_MOST (ONE + 31 * 0x1p23) /* of a hash of 2^31, which stands for u = 1 */

typedef struct {
    const float *logits;
    int num_logits, num_vectors;
    const uint8_t *allowed; /* NULL: all are */
    const Draw *draw;
    uint32_t key[2];
    float tail[LANES]; /* the logits after the last whole vector, then -inf */
} Row;

typedef struct {
    double best, second; /* scores */
    int best_id;         /* -1 if there is none yet */
} Race;

/* A token's place in the order of falling logit, the lower id first among equals. */
typedef struct {
    int vector;   /* that it is in */
    f32s bars[3]; /* what logits ahead of it are above: before that vector, in it, after it */
} Place;

typedef enum { KEPT, DROPPED, UNSURE } Verdict;

/* SplitMix64's next output, as in _mix64. */
static uint64_t mixed(uint64_t state)
{
    uint64_t z = state + 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static void set_row(Row *row, const float *logits, int num_logits, const uint8_t *allowed,
                    const Draw *draw)
{
    uint64_t key = mixed(mixed(draw->seed) ^ draw->position);
    int num_whole = num_logits / LANES * LANES;
    row->logits = logits;
    row->num_logits = num_logits;
    row->num_vectors = (num_logits + LANES - 1) / LANES;
    row->allowed = allowed;
    row->draw = draw;
    row->key[0] = (uint32_t)key;
    row->key[1] = (uint32_t)(key >> 32);
    store(row->tail, all(-INFINITY));
    memcpy(row->tail, logits + num_whole, (size_t)(num_logits - num_whole) * sizeof(float));
}

/* Ones in all lanes of what may be drawn. */
INLINE i32s allowed_at(const Row *row, int vector)
{
    int first = vector * LANES;
    int32_t bits = row->allowed[first / 8] >> first % 8;
#if LANES > 8
    bits |= row->allowed[first / 8 + 1] << 8;
#endif
    return (bits & 1 << (i32s){LANE_NUMBERS}) != 0;
}

/* -inf where it may not be drawn. */
INLINE f32s vector_at(const Row *row, int vector)
{
    bool is_whole = (vector + 1) * LANES <= row->num_logits;
    f32s logits = load(is_whole ? row->logits + (size_t)vector * LANES : row->tail);
    if (row->allowed == NULL)
        return logits;
    return choose(allowed_at(row, vector), logits, all(-INFINITY));
}

INLINE int end_of_block(const Row *row, int block)
{
    int end = (block + 1) * BLOCK_VECTORS;
    return end < row->num_vectors ? end : row->num_vectors;
}

static int num_blocks(const Row *row)
{
    return (row->num_vectors + BLOCK_VECTORS - 1) / BLOCK_VECTORS;
}

INLINE u32s ids_at(int vector)
{
    return (u32s)((i32s){LANE_NUMBERS} ^ vector * LANES);
}

/* As log_noise has them: 31 bits each. */
INLINE u32s hashes(u32s ids, const uint32_t *key)
{
    u32s bits = ids ^ key[0];
    bits = (bits ^ bits >> 16) * 0x21F0AAADu;
    bits = (bits ^ bits >> 15 ^ key[1]) * 0x735A2D97u;
    return (bits ^ bits >> 15) & 0x7FFFFFFFu;
}

/* In STEPS, without BITS_OF_MOST, which all have in common. */
INLINE f32s ceilings(f32s logits, int vector, const Row *row, float scale)
{
    i32s bits = (i32s)__builtin_convertvector((i32s)hashes(ids_at(vector), row->key), f32s);
    return logits * scale - __builtin_convertvector(bits, f32s);
}

static float scale_of(const Row *row)
{
    return (float)(STEPS / (double)row->draw->temperature);
}

/* A smaller difference of scores doesn't tell which of two PyTorch finds larger in float32. It is a
 * few times what roundings of quotients, of logarithms (below 25) and of sums come to. */
static double blur(double score)
{
    return 0x1p-14 + fabs(score) * 0x1p-21;
}

static Place place_of(const Row *row, int id)
{
    float logit = row->logits[id], below = nextafterf(logit, -INFINITY);
    f32s after = all(logit), before = all(below);
    i32s is_before = (i32s){LANE_NUMBERS} < id % LANES;
    return (Place){id / LANES, {before, choose(is_before, before, after), after}};
}

INLINE i32s is_ahead(f32s logits, int vector, const Place *place)
{
    return logits > place->bars[(vector >= place->vector) + (vector > place->vector)];
}

INLINE int32_t bits_of(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Takes part in the race: the score from the very float32 that it is made of in log_noise. */
static void enter(Race *race, const Row *row, int id)
{
    if (id == race->best_id)
        return;
    int32_t hash = (int32_t)hashes((u32s)all_words(id), row->key)[0];
    float uniform = ((float)hash + 0.5f) * 0x1.fffffep-32f;
    double score = (double)(row->logits[id] / row->draw->temperature);
    if (score + (ONE - (double)bits_of(uniform)) / STEPS < race->best - 2 * blur(race->best))
        return; /* spares most of a list the logarithms */
    score -= log(-log1p(-(double)uniform));
    if (score > race->best) {
        race->second = race->best;
        race->best = score;
        race->best_id = id;
    } else if (score > race->second) {
        race->second = score;
    }
}

/* The highest ceiling of each block, of tokens ahead of the place if one is given; and the block of
 * the highest of all, or -1 if there is no finite one, or NaN in the row. */
INLINE int bound(const Row *row, const Place *place, float *tops)
{
    const float scale = scale_of(row);
    float highest = -INFINITY;
    int first = -1;
    f32s total = all(0); /* stays a number unless one isn't, or infinities meet */
    for (int block = 0; block < num_blocks(row); block++) {
        f32s top = all(-INFINITY);
        for (int i = block * BLOCK_VECTORS; i < end_of_block(row, block); i++) {
            f32s logits = vector_at(row, i), ceiling = ceilings(logits, i, row, scale);
            total += logits;
            if (place != NULL)
                ceiling = choose(is_ahead(logits, i, place), ceiling, all(-INFINITY));
            top = larger(top, ceiling);
        }
        tops[block] = largest(top);
        if (tops[block] > highest) {
            highest = tops[block];
            first = block;
        }
    }
    return isnan(sum(total)) || isinf(highest) ? -1 : first;
}

/* All of a block whose ceilings reach the bar. */
static void enter_block(Race *race, const Row *row, const Place *place, int block, float bar)
{
    const float scale = scale_of(row);
    for (int i = block * BLOCK_VECTORS; i < end_of_block(row, block); i++) {
        f32s logits = vector_at(row, i);
        i32s enters = ceilings(logits, i, row, scale) >= bar;
        if (place != NULL)
            enters &= is_ahead(logits, i, place);
        for (uint32_t lanes = lanes_of(enters); lanes != 0; lanes &= lanes - 1)
            enter(race, row, i * LANES + __builtin_ctz(lanes));
    }
}

/* The winner's id, of tokens ahead of the place if one is given; -1 if that is undecided. */
static int winner(const Row *row, const Place *place)
{
    Race race = {-INFINITY, -INFINITY, -1};
    float tops[num_blocks(row)];
    int first = place == NULL ? bound(row, NULL, tops) : bound(row, place, tops);
    if (first < 0)
        return -1;
    enter_block(&race, row, place, first, tops[first]);
    float bar = (float)((race.best - blur(race.best)) * STEPS - BITS_OF_MOST);
    for (int block = 0; block < num_blocks(row); block++)
        if (tops[block] >= bar)
            enter_block(&race, row, place, block, bar);
    return race.best - race.second > blur(race.best) ? race.best_id : -1;
}

/* What is ahead of a token; masses are probabilities as multiples of its own. */
typedef struct {
    int num_ahead;
    double mass_ahead, mass;
    float top; /* the highest logit */
} Standing;

static Standing standing_of(const Row *row, int id)
{
    const Place place = place_of(row, id);
    const float logit = row->logits[id], scale = 1.44269504f / row->draw->temperature;
    Standing standing = {.top = -INFINITY};
    f32s top = all(-INFINITY);
    for (int block = 0; block < num_blocks(row); block++) {
        f32s mass = all(0), ahead = all(0);
        i32s num_ahead = all_words(0);
        for (int i = block * BLOCK_VECTORS; i < end_of_block(row, block); i++) {
            f32s logits = vector_at(row, i), weight = exp2_of((logits - logit) * scale);
            i32s mask = is_ahead(logits, i, &place);
            mass += weight;
            ahead += choose(mask, weight, all(0));
            num_ahead -= mask;
            top = larger(top, logits);
        }
        standing.mass += (double)sum(mass);
        standing.mass_ahead += (double)sum(ahead);
        standing.num_ahead += (int)sum(__builtin_convertvector(num_ahead, f32s));
    }
    standing.top = largest(top);
    return standing;
}

/* The share of itself by which a probability may differ from PyTorch's, which is of a score rounded
 * to float32; a few times as much. */
static double doubt_of(const Row *row, float logit)
{
    return 0x1p-14 + fabs((double)(logit / row->draw->temperature)) * 0x1p-21;
}

static Verdict compared(double more, double less, double doubt)
{
    if (more * (1 - doubt) > less * (1 + doubt))
        return KEPT;
    return more * (1 + doubt) < less * (1 - doubt) ? DROPPED : UNSURE;
}

static Verdict both(Verdict a, Verdict b)
{
    return a == DROPPED || b == DROPPED ? DROPPED : a == UNSURE || b == UNSURE ? UNSURE : KEPT;
}

/* Whether float32 can tell what is above the filters' limits. */
static bool is_usual(const Draw *draw)
{
    return draw->top_p > LEAST_SHARE && (draw->min_p == 0 || draw->min_p > LEAST_SHARE);
}

/* Whether the filters keep a row's winner. */
static Verdict verdict_on(const Row *row, int id)
{
    const Draw *draw = row->draw;
    const Standing standing = standing_of(row, id);
    const double temperature = (double)draw->temperature, logit = (double)row->logits[id];
    if (standing.num_ahead == 0)
        return KEPT;
    if (standing.num_ahead >= draw->top_k)
        return DROPPED;
    double doubt = doubt_of(row, row->logits[id]);
    double of_top = exp(((double)standing.top - logit) / temperature);
    /* PyTorch sums float32 over the vocabulary, by eight lanes or more. */
    double doubt_of_sum = doubt + row->num_logits * 0x1p-27;
    return both(compared((double)draw->top_p * standing.mass, standing.mass_ahead, doubt_of_sum),
                compared(1, (double)draw->min_p * of_top, doubt));
}

static int64_t draw_any(const Row *row)
{
    const Draw *draw = row->draw;
    const bool keeps_all = draw->top_k >= row->num_logits && isinf(draw->top_p) && draw->min_p == 0;
    if (!keeps_all && (!is_usual(draw) || (draw->top_k < row->num_logits && !isinf(draw->top_p))))
        return -1;
    int id = winner(row, NULL);
    for (int races = 1; id >= 0 && !keeps_all && races < MOST_RACES; races++) {
        Verdict verdict = verdict_on(row, id);
        if (verdict != DROPPED)
            return verdict == KEPT ? id : -1;
        const Place place = place_of(row, id);
        id = winner(row, &place);
    }
    return keeps_all ? id : -1;
}

static int64_t draw_likeliest(const Row *row)
{
    f32s total = all(0);
    float highest = -INFINITY;
    int best = 0;
    for (int block = 0; block < num_blocks(row); block++) {
        f32s top = all(-INFINITY);
        for (int i = block * BLOCK_VECTORS; i < end_of_block(row, block); i++) {
            total += vector_at(row, i);
            top = larger(top, vector_at(row, i));
        }
        if (largest(top) > highest) {
            highest = largest(top);
            best = block;
        }
    }
    if (isnan(sum(total)))
        return -1;
    for (int i = best * BLOCK_VECTORS;; i++) {
        uint32_t lanes = lanes_of(vector_at(row, i) == highest);
        if (lanes != 0)
            return i * LANES + __builtin_ctz(lanes);
    }
}

/* Integers that sort as the floats do; and back. */
INLINE i32s order_of(f32s x)
{
    i32s bits = (i32s)(x + 0.0f); /* -0.0 + 0.0 is 0.0 */
    return bits ^ (bits >> 31 & 0x7FFFFFFF);
}

static float from_order(int32_t order)
{
    order ^= order >> 31 & 0x7FFFFFFF;
    float x;
    memcpy(&x, &order, sizeof x);
    return x;
}

/* The highest bar that at least `count` of the numbers reach. */
static int32_t bar_for(const int32_t *numbers, int num_numbers, int count)
{
    int64_t low = INT32_MIN, high = INT32_MAX; /* low is reached, what is above high isn't */
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        int num_reaching = 0;
        for (int i = 0; i < num_numbers; i++)
            num_reaching += numbers[i] >= (int32_t)middle;
        if (num_reaching >= count)
            low = middle;
        else
            high = middle - 1;
    }
    return (int32_t)low;
}

/* A logit that at least `count` reach, and not many more, if there are so many finite ones; NaN if
 * the row has NaN. */
static float find_bar(const Row *row, int count)
{
    int32_t groups[MOST_GROUPS];
    int num_groups = 0, wanted = GROUPS_EACH * count / LANES + 1;
    int step = row->num_vectors > wanted ? row->num_vectors / wanted : 1;
    f32s total = all(0);
    for (int begin = 0; begin < row->num_vectors; begin += step) {
        f32s top = all(-INFINITY);
        for (int i = begin; i < begin + step && i < row->num_vectors; i++) {
            total += vector_at(row, i);
            top = larger(top, vector_at(row, i));
        }
        i32s order = order_of(top);
        memcpy(groups + num_groups, &order, sizeof order);
        num_groups += LANES;
    }
    float bar = num_groups < count ? -FLT_MAX : from_order(bar_for(groups, num_groups, count));
    return isnan(sum(total)) ? NAN : fmaxf(bar, -FLT_MAX);
}

/* The largest key first: Shell's sort with Ciura's gaps, which beats qsort's calls on lists this
 * short. */
static void sort(uint64_t *keys, int num_keys)
{
    static const int gaps[] = {701, 301, 132, 57, 23, 10, 4, 1};
    for (size_t step = 0; step < sizeof gaps / sizeof *gaps; step++)
        for (int i = gaps[step], j = i; i < num_keys; j = ++i) {
            uint64_t key = keys[i];
            for (; j >= gaps[step] && keys[j - gaps[step]] < key; j -= gaps[step])
                keys[j] = keys[j - gaps[step]];
            keys[j] = key;
        }
}

/* Ids of the likeliest tokens that may be drawn, in order; how many, or -1 if that is undecided. */
static int list_likeliest(const Row *row, int count, int *ids)
{
    uint64_t keys[LIST_ROOM + LANES];
    int num_keys = 0;
    float bar = find_bar(row, count);
    if (isnan(bar))
        return -1;
    for (int i = 0; i < row->num_vectors; i++) {
        f32s logits = vector_at(row, i);
        i32s order = order_of(logits);
        for (uint32_t lanes = lanes_of(logits >= bar); lanes != 0; lanes &= lanes - 1) {
            int lane = __builtin_ctz(lanes);
            uint32_t rising = (uint32_t)order[lane] ^ 0x80000000u;
            keys[num_keys++] = (uint64_t)rising << 32 | ~(uint32_t)(i * LANES + lane);
        }
        if (num_keys > LIST_ROOM)
            return -1;
    }
    sort(keys, num_keys);
    count = num_keys < count ? num_keys : count;
    for (int i = 0; i < count; i++)
        ids[i] = (int)~(uint32_t)keys[i];
    return count;
}

/* How many of the first tokens top-p and min-p keep for sure; and, in `most`, how many perhaps. */
static int num_kept(const Row *row, const int *ids, int count, int *most)
{
    const Draw *draw = row->draw;
    const float top = row->logits[ids[0]];
    double weights[MOST_LISTED], total = 0, ahead = 0, doubt = doubt_of(row, top);
    int least = *most = count;
    if (isinf(draw->top_p) && draw->min_p == 0)
        return count;
    for (int i = 0; i < count; i++) {
        double distance = (double)row->logits[ids[i]] - (double)top;
        total += weights[i] = exp(distance / (double)draw->temperature);
    }
    for (int i = 0; i < *most; ahead += weights[i++]) {
        Verdict verdict = i == 0 ? KEPT : both(compared((double)draw->top_p * total, ahead, doubt),
                                               compared(weights[i], (double)draw->min_p, doubt));
        if (verdict != KEPT && i < least)
            least = i;
        if (verdict == DROPPED)
            *most = i;
    }
    return least;
}

/* Whether top-k leaves so few that they are soon sorted, or top-p is a share of what it leaves. */
static bool is_listed(const Row *row)
{
    int most = isinf(row->draw->top_p) ? FEW : MOST_LISTED;
    return row->draw->top_k < row->num_logits && row->draw->top_k <= most;
}

static int64_t draw_listed(const Row *row)
{
    int ids[MOST_LISTED], most;
    int count = is_usual(row->draw) ? list_likeliest(row, row->draw->top_k, ids) : -1;
    if (count <= 0)
        return -1;
    int least = num_kept(row, ids, count, &most);
    Race race = {-INFINITY, -INFINITY, -1};
    for (int i = 0; i < most; i++)
        enter(&race, row, ids[i]);
    bool is_sure = isfinite(race.best) && race.best - race.second > blur(race.best);
    for (int i = least; i < most; i++)
        is_sure &= race.best_id != ids[i];
    return is_sure ? race.best_id : -1;
}

typedef struct {
    const float *logits;
    int64_t stride;
    int num_logits;
    const uint8_t *const *allowed;
    const Draw *draws;
    int64_t *ids;
} Job;

static void draw_one(void *context, int item)
{
    const Job *job = context;
    Row row;
    set_row(&row, job->logits + item * job->stride, job->num_logits, job->allowed[item],
            &job->draws[item]);
    if (isinf(row.draw->temperature))
        job->ids[item] = -1;
    else if (row.draw->temperature == 0)
        job->ids[item] = draw_likeliest(&row);
    else if (is_listed(&row))
        job->ids[item] = draw_listed(&row);
    else
        job->ids[item] = draw_any(&row);
}

int draw_tokens(State *state, const float *logits, int64_t stride, int num_rows, int num_logits,
                const uint8_t *const *allowed, const Draw *draws, int64_t *ids)
{
    Job job = {logits, stride, num_logits, allowed, draws, ids};
    bool wakes = num_rows >= ROWS_WORTH_WAKING;
    if (wakes)
        begin_step(state);
    share(state->team, num_rows, draw_one, &job);
    if (wakes)
        end_step(state);
    int num_undecided = 0;
    for (int row = 0; row < num_rows; row++)
        num_undecided += ids[row] < 0;
    return num_undecided;
}
