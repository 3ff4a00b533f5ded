/* Row by row, by vectors as far as whole ones go. */
#include "rows.h"

#include <math.h>

void rms_norm(const float *x, const float *weight, int num_values, float eps, float *y)
{
    f32s squares[2] = {all(0), all(0)}; /* two, as one sum would wait for itself */
    int i = 0;
    for (; i + 2 * LANES <= num_values; i += 2 * LANES) {
        squares[0] += load(x + i) * load(x + i);
        squares[1] += load(x + i + LANES) * load(x + i + LANES);
    }
    float total = sum(squares[0] + squares[1]);
    for (; i < num_values; i++)
        total += x[i] * x[i];
    float scale = 1 / sqrtf(total / (float)num_values + eps);
    for (i = 0; i < num_values; i++)
        y[i] = x[i] * scale * weight[i];
}

void rotation_at(int64_t position, const float *frequency, int num_pairs, float *rotation)
{
    for (int pair = 0; pair < num_pairs; pair++) {
        float angle = (float)position * frequency[pair];
        rotation[pair] = cosf(angle);
        rotation[num_pairs + pair] = sinf(angle);
    }
}

void rotate(float *head, const float *rotation, int num_pairs)
{
    int i = 0;
    for (; i + LANES <= num_pairs; i += LANES) {
        f32s a = load(head + i), b = load(head + num_pairs + i);
        f32s cosine = load(rotation + i), sine = load(rotation + num_pairs + i);
        store(head + i, a * cosine - b * sine);
        store(head + num_pairs + i, b * cosine + a * sine);
    }
    for (; i < num_pairs; i++) {
        float a = head[i], b = head[num_pairs + i];
        float cosine = rotation[i], sine = rotation[num_pairs + i];
        head[i] = a * cosine - b * sine;
        head[num_pairs + i] = b * cosine + a * sine;
    }
}

void to_bf16(const float *x, int num_values, uint16_t *to)
{
    int i = 0;
    for (; i + LANES <= num_values; i += LANES)
        store_bf16(to + i, load(x + i));
    for (; i < num_values; i++)
        to[i] = bf16(x[i]);
}

void to_factors(const float *x, int num_values, float scale, Factor *to)
{
    int i = 0;
    for (; i + LANES <= num_values; i += LANES)
        store_factors(to + i, load(x + i) * scale);
    for (; i < num_values; i++)
        to[i] = factor(x[i] * scale);
}
