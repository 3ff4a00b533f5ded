#include "state.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#ifdef __AMX_TILE__
#include "tiles.h"
#endif

#define ALIGNMENT 64
#define LARGE_PAGE (2 << 20)

State *state_create(int num_threads)
{
    State *state = calloc(1, sizeof(State));
    if (state != NULL && (state->team = team_create(num_threads)) == NULL) {
        free(state);
        return NULL;
    }
    return state;
}

void state_destroy(State *state)
{
    team_destroy(state->team);
    free(state->memory);
    free(state);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

void state_take_seconds(State *state, int timed, double *seconds)
{
    memcpy(seconds, state->seconds, sizeof state->seconds);
    memset(state->seconds, 0, sizeof state->seconds);
    state->timed = timed;
}

void begin_step(State *state)
{
#ifdef __AMX_TILE__
    forget_shapes();
#endif
    team_wake(state->team);
    state->last = state->timed ? now() : 0;
}

void end_step(State *state)
{
    team_rest(state->team);
}

void mark(State *state, Phase phase)
{
    if (state->timed) {
        double time = now();
        state->seconds[phase] += time - state->last;
        state->last = time;
    }
}

char *reserve(State *state, size_t size)
{
    if (size > state->size) {
        free(state->memory);
        size = (size + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
        state->memory = aligned_alloc(LARGE_PAGE, size);
        state->size = state->memory == NULL ? 0 : size;
        if (state->memory != NULL)
            madvise(state->memory, size, MADV_HUGEPAGE); /* rows are far apart */
    }
    return state->memory;
}

void *part(char *memory, size_t *used, size_t num_items, size_t item_size)
{
    void *begin = memory == NULL ? NULL : memory + *used;
    *used += (num_items * item_size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return begin;
}
