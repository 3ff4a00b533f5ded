/* Logits to token ids: what model/sampling.py says in PyTorch, row by row. Knows no requests. The
 * structure is that of library.py.
 *
 * It decides only what can't come out otherwise there. Its own arithmetic differs from PyTorch's in
 * the last bits; where those could matter, as where two scores are nearly equal, it leaves a row to
 * PyTorch, and so rows with NaN or without a finite logit.
 *
 * Shapes: S rows, V vocabulary.
 */
#ifndef OCTAVO_SAMPLING_H
#define OCTAVO_SAMPLING_H

#include <stdint.h>

#include "state.h"

typedef struct {
    uint64_t seed, position;
    float temperature; /* 0 takes the likeliest */
    int32_t top_k;     /* the size of the vocabulary where all are kept */
    float top_p;       /* infinite where all are kept */
    float min_p;
} Draw;

/* ids[S] of logits[S][V], whose rows are `stride` apart; -1 where a row is left undecided. Returns
 * how many are. allowed[S]: of each row, a bit for each token, as in model.batch.Context, and up to a
 * whole multiple of 16; NULL where all may be drawn. */
int draw_tokens(State *state, const float *logits, int64_t stride, int num_rows, int num_logits,
                const uint8_t *const *allowed, const Draw *draws, int64_t *ids);

#endif
