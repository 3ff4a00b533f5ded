/* Weights as GGUF files hold them, INPUT_GROUP to a block: a scale, which is a half, and codes. A
 * block's size says which type it is of:
 *
 *     18 bytes    Q4_0    4-bit codes k and 16 + k in a byte, of which 8 is taken
 *     20 bytes    Q4_1    the same, but a least weight, a half, is added
 *     34 bytes    Q8_0    signed bytes
 */
#ifndef OCTAVO_BLOCKS_H
#define OCTAVO_BLOCKS_H

#include "product.h"

#include "vector.h"

#define SCALE_BYTES 2
#define Q4_1_BYTES 20
#define Q8_0_BYTES 34

INLINE float float_of_half(const uint8_t *from)
{
    uint16_t halves[LANES] = {0};
    memcpy(halves, from, sizeof *halves);
    return from_half(halves)[0];
}

/* Of a block in nibbles. */
INLINE float block_least(const uint8_t *block, int block_bytes)
{
    return block_bytes == Q4_1_BYTES ? float_of_half(block + SCALE_BYTES)
                                     : -8 * float_of_half(block);
}

/* Of such a block, whose codes are its end. */
INLINE int block_code(const uint8_t *block, int block_bytes, int k)
{
    const uint8_t *from = block + block_bytes - INPUT_GROUP / 2;
    return k < INPUT_GROUP / 2 ? from[k] & 15 : from[k - INPUT_GROUP / 2] >> 4;
}

INLINE void decode_block(const uint8_t *block, int block_bytes, float *to)
{
    const float scale = float_of_half(block);
    if (block_bytes == Q8_0_BYTES) {
        for (int k = 0; k < INPUT_GROUP; k++)
            to[k] = (float)(int8_t)block[SCALE_BYTES + k] * scale;
        return;
    }
    const float least = block_least(block, block_bytes);
    for (int k = 0; k < INPUT_GROUP; k++)
        to[k] = (float)block_code(block, block_bytes, k) * scale + least;
}

/* A row of num_blocks as floats. */
INLINE void decode_blocks(const uint8_t *blocks, int num_blocks, int block_bytes, float *to)
{
    for (int i = 0; i < num_blocks; i++)
        decode_block(blocks + (size_t)i * block_bytes, block_bytes, to + i * INPUT_GROUP);
}

#endif
