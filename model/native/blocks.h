/* Weights as GGUF files hold them, INPUT_GROUP to a block: a scale, which is a half, and codes. A
 * block's size says which type it is of:
 *
 *     18 bytes    Q4_0    4-bit codes k and 16 + k in a byte, of which 8 is taken
 *     20 bytes    Q4_1    the same, but a least weight, a half, is added
 *     34 bytes    Q8_0    signed bytes
 */
#ifndef OCTAVO_BLOCKS_H
#define OCTAVO_BLOCKS_H

#include <stdint.h>

/* Those in nibbles. */
float block_least(const uint8_t *block, int block_bytes);
int block_code(const uint8_t *block, int block_bytes, int k);

uint16_t block_scale(const uint8_t *block);

/* A row of num_blocks as floats. */
void decode_blocks(const uint8_t *blocks, int num_blocks, int block_bytes, float *to);

#endif
