#include "blocks.h"

#include "product.h"
#include "vector.h"

#define Q4_1_BYTES 20
#define Q8_0_BYTES 34

static uint16_t half_at(const uint8_t *from)
{
    uint16_t half;
    memcpy(&half, from, sizeof half);
    return half;
}

static float float_of_half(uint16_t half)
{
    const uint16_t halves[LANES] = {half};
    return from_half(halves)[0];
}

uint16_t block_scale(const uint8_t *block)
{
    return half_at(block);
}

float block_least(const uint8_t *block, int block_bytes)
{
    return block_bytes == Q4_1_BYTES ? float_of_half(half_at(block + 2))
                                     : -8 * float_of_half(half_at(block));
}

int block_code(const uint8_t *block, int block_bytes, int k)
{
    const uint8_t *from = block + block_bytes - INPUT_GROUP / 2;
    return k < INPUT_GROUP / 2 ? from[k] & 15 : from[k - INPUT_GROUP / 2] >> 4;
}

static void decode_block(const uint8_t *block, int block_bytes, float *to)
{
    const float scale = float_of_half(half_at(block));
    if (block_bytes == Q8_0_BYTES)
        for (int k = 0; k < INPUT_GROUP; k++)
            to[k] = (float)(int8_t)block[sizeof(uint16_t) + k] * scale;
    else
        for (int k = 0; k < INPUT_GROUP; k++)
            to[k] = (float)block_code(block, block_bytes, k) * scale +
                    block_least(block, block_bytes);
}

void decode_blocks(const uint8_t *blocks, int num_blocks, int block_bytes, float *to)
{
    for (int i = 0; i < num_blocks; i++)
        decode_block(blocks + (size_t)i * block_bytes, block_bytes, to + i * INPUT_GROUP);
}
