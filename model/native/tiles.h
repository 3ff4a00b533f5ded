/* The tile unit's registers: eight matrices of up to sixteen rows of 64 bytes (Intel's Software
 * Developer's Manual, volume 1, chapter 18). A thread says how large each is before it uses them.
 */
#ifndef OCTAVO_TILES_H
#define OCTAVO_TILES_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define TILE_ROWS 16
#define NUM_TILES 8

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t num_rows[16];
} TileShapes;

/* Those of the thread's tiles; shaping them anew takes as long as several products. */
extern _Thread_local TileShapes tile_shapes;

static inline void use_shapes(const TileShapes *shapes)
{
    if (memcmp(shapes, &tile_shapes, sizeof *shapes) != 0) {
        __asm__ volatile("ldtilecfg %0" : : "m"(*shapes));
        tile_shapes = *shapes;
    }
}

/* Others may have shaped the tiles of a thread that isn't ours alone. */
static inline void forget_shapes(void)
{
    memset(&tile_shapes, 0, sizeof tile_shapes);
}

/* For products of rows with pairs of bfloat16, of which there are two lengths:
 *
 *     tiles        0, 1      │ 2          3           │ 4, 5          6, 7
 *     hold         sums      │ rows of pairs: one     │ pairs of 16 columns: one length,
 *                            │ length, the other      │ the other
 */
static inline void shape_tiles(int num_rows, int num_pairs, int other_num_pairs)
{
    TileShapes shapes = {.palette = 1};
    for (int tile = 0; tile < NUM_TILES; tile++) {
        int pairs = tile == 2 || tile == 4 || tile == 5 ? num_pairs : other_num_pairs;
        shapes.row_bytes[tile] = (uint16_t)(tile == 2 || tile == 3 ? 4 * pairs : 64);
        shapes.num_rows[tile] = (uint8_t)(tile < 4 ? num_rows : pairs);
    }
    use_shapes(&shapes);
}

#endif
