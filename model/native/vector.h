/* Sixteen numbers at a time: the few operations that the kernels need, for any processor.
 *
 * Written in GCC's vector extensions, which clang has too and which become whatever vectors the
 * target of the compilation has. Only what they can't say, or what a target does better by an
 * instruction of its own, is said twice. This file knows nothing of models.
 *
 * The library is compiled once for each kind of processor; see build.py.
 */
#ifndef OCTAVO_VECTOR_H
#define OCTAVO_VECTOR_H

#include <stdint.h>
#include <string.h>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#define LANES 16
#define INLINE static inline __attribute__((always_inline))

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef int8_t i8x16 __attribute__((vector_size(16)));

INLINE f32x16 load(const float *from)
{
    f32x16 x;
    memcpy(&x, from, sizeof x);
    return x;
}

INLINE void store(float *to, f32x16 x)
{
    memcpy(to, &x, sizeof x);
}

INLINE u32x16 load_bits(const void *from)
{
    u32x16 x;
    memcpy(&x, from, sizeof x);
    return x;
}

INLINE uint32_t load_word(const void *from)
{
    uint32_t x;
    memcpy(&x, from, sizeof x);
    return x;
}

INLINE f32x16 all(float x)
{
    return (f32x16){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

INLINE i32x16 all_words(int32_t x)
{
    return (i32x16){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

/* a where the mask is all ones, b where it is 0. */
INLINE f32x16 choose(i32x16 mask, f32x16 a, f32x16 b)
{
    return (f32x16)((mask & (i32x16)a) | (~mask & (i32x16)b));
}

INLINE f32x16 larger(f32x16 a, f32x16 b)
{
#ifdef __AVX512F__
    return (f32x16)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return choose(a > b, a, b);
#endif
}

INLINE f32x16 magnitude(f32x16 x)
{
    return (f32x16)((u32x16)x & 0x7FFFFFFFu);
}

/* Each lane added to, or compared with, the one that is `distance` further. */
#define TURNED(x, distance)                                                                        \
    __builtin_shuffle(x, (i32x16){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} ^ distance)

INLINE float sum(f32x16 x)
{
    x += TURNED(x, 8);
    x += TURNED(x, 4);
    x += TURNED(x, 2);
    x += TURNED(x, 1);
    return x[0];
}

INLINE float largest(f32x16 x)
{
    x = larger(x, TURNED(x, 8));
    x = larger(x, TURNED(x, 4));
    x = larger(x, TURNED(x, 2));
    x = larger(x, TURNED(x, 1));
    return x[0];
}

/* To the nearest integer, the even one of two; for magnitudes below 2^22, since it pushes the
 * fraction out of the mantissa. */
INLINE i32x16 rounded(f32x16 x)
{
    return (i32x16)(x + 0x1.8p23f) - 0x4B400000;
}

/* 2^x, with a relative error below 1e-7 * |x| + 3e-7; exactly 1 for 0, and 0 below 2^-126. */
INLINE f32x16 exp2_of(f32x16 x)
{
#ifdef __AVX512DQ__
    f32x16 rest = (f32x16)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT);
    f32x16 whole = x - rest;
#else
    i32x16 vanishes = x < -126.0f;
    x = larger(x, all(-126.0f));
    i32x16 whole = rounded(x);
    f32x16 rest = x - __builtin_convertvector(whole, f32x16);
#endif
    f32x16 y = rest * 1.5403530e-4f + 1.3333558e-3f; /* the series of e^(rest ln 2) */
    y = y * rest + 9.6181291e-3f;
    y = y * rest + 5.5504109e-2f;
    y = y * rest + 2.4022651e-1f;
    y = y * rest + 6.9314718e-1f;
    y = y * rest + 1.0f;
#ifdef __AVX512DQ__
    return (f32x16)_mm512_scalef_ps((__m512)y, (__m512)whole);
#else
    return (f32x16)(((i32x16)y + (whole << 23)) & ~vanishes);
#endif
}

/* acc + what four unsigned bytes of each lane weigh with the same four signed bytes. */
INLINE i32x16 dot_bytes(i32x16 acc, u32x16 bytes, uint32_t four)
{
#ifdef __AVX512VNNI__
    return (i32x16)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)bytes, _mm512_set1_epi32((int)four));
#elif defined(__AVX2__)
    __m256i evens = _mm256_set1_epi32((int)((four << 8 & 0xFF00u) | (four << 8 & 0xFF000000u)));
    __m256i odds = _mm256_srai_epi16(_mm256_set1_epi32((int)four), 8);
    union { i32x16 whole; __m256i halves[2]; } sums = {acc};
    union { u32x16 whole; __m256i halves[2]; } in = {bytes};
    evens = _mm256_srai_epi16(evens, 8);
    for (int i = 0; i < 2; i++) {
        __m256i low = _mm256_and_si256(in.halves[i], _mm256_set1_epi16(0xFF));
        __m256i high = _mm256_srli_epi16(in.halves[i], 8);
        __m256i pair = _mm256_add_epi32(_mm256_madd_epi16(low, evens), _mm256_madd_epi16(high, odds));
        sums.halves[i] = _mm256_add_epi32(sums.halves[i], pair);
    }
    return sums.whole;
#else
    for (int byte = 0; byte < 4; byte++)
        acc += (i32x16)(bytes >> 8 * byte & 0xFFu) * (int32_t)(int8_t)(four >> 8 * byte);
    return acc;
#endif
}

/* bfloat16 is the upper half of a float. */

INLINE uint16_t bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

INLINE f32x16 from_bf16(const uint16_t *from)
{
    u16x16 halves;
    memcpy(&halves, from, sizeof halves);
    return (f32x16)(__builtin_convertvector(halves, u32x16) << 16);
}

INLINE void store_bf16(uint16_t *to, f32x16 x)
{
#ifdef __AVX512BF16__
    __m256bh narrow = _mm512_cvtneps_pbh((__m512)x);
    memcpy(to, &narrow, sizeof narrow);
#else
    u32x16 bits = (u32x16)x;
    u16x16 halves = __builtin_convertvector((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16, u16x16);
    memcpy(to, &halves, sizeof halves);
#endif
}

/* Halves (IEEE 754's binary16), finite ones. */
INLINE f32x16 from_half(const uint16_t *from)
{
    u16x16 halves;
    memcpy(&halves, from, sizeof halves);
#ifdef __AVX512F__
    return (f32x16)_mm512_cvtph_ps((__m256i)halves);
#else
    u32x16 bits = __builtin_convertvector(halves, u32x16);
    f32x16 small = (f32x16)((bits & 0x7FFFu) << 13) * 0x1p112f;
    return (f32x16)((u32x16)small | (bits & 0x8000u) << 16);
#endif
}

/* acc + what the two bfloat16 of each lane weigh with the same two. */
INLINE f32x16 dot_pairs(f32x16 acc, u32x16 pairs, uint32_t two)
{
#ifdef __AVX512BF16__
    return (f32x16)_mm512_dpbf16_ps((__m512)acc, (__m512bh)pairs,
                                    (__m512bh)_mm512_set1_epi32((int)two));
#else
    u32x16 both = (u32x16)all_words((int32_t)two);
    acc += (f32x16)(pairs << 16) * (f32x16)(both << 16);
    acc += (f32x16)(pairs & 0xFFFF0000u) * (f32x16)(both & 0xFFFF0000u);
    return acc;
#endif
}

#endif
