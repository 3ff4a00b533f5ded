/* What outlives a step: the threads, the memory that steps work in, and how long their phases took.
 */
#ifndef OCTAVO_STATE_H
#define OCTAVO_STATE_H

#include <stddef.h>

#include "team.h"

typedef enum { NORM, QKV, ROTATE, ATTEND, OUTPUT, GATE_UP, DOWN, HEAD, NUM_PHASES } Phase;

typedef struct {
    Team *team;
    char *memory; /* grows to what the largest step so far has needed */
    size_t size;
    int timed;
    double last, seconds[NUM_PHASES];
} State;

State *state_create(int num_threads);
void state_destroy(State *state);

/* Seconds of each phase since the last call, which are measured only if `timed` was set then. */
void state_take_seconds(State *state, int timed, double *seconds);

/* The others of the team are awake between these two. */
void begin_step(State *state);
void end_step(State *state);

/* What has passed since the last mark belongs to this phase. */
void mark(State *state, Phase phase);

/* At least so many bytes, of any content; NULL if there aren't as many. */
char *reserve(State *state, size_t size);

/* The next part of the memory; where that is NULL, only counts how much is needed. */
void *part(char *memory, size_t *used, size_t num_items, size_t item_size);

#endif
