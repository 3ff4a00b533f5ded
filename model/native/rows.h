/* What happens to each row by itself: norm, rotation. Knows no products or pages. */
#ifndef OCTAVO_ROWS_H
#define OCTAVO_ROWS_H

#include <stdint.h>

#include "vector.h"

/* y = x / the root of the mean square * weight, of num_values values. */
void rms_norm(const float *x, const float *weight, int num_values, float eps, float *y);

/* The cosines of position * frequency, then the sines. */
void rotation_at(int64_t position, const float *frequency, int num_pairs, float *rotation);

/* In place, of a head with pairs i and i + num_pairs. */
void rotate(float *head, const float *rotation, int num_pairs);

void to_bf16(const float *x, int num_values, uint16_t *to);

/* Times scale. */
void to_factors(const float *x, int num_values, float scale, Factor *to);

#endif
