/* LANES numbers at a time: the few operations that the kernels need, for any processor.
 *
 * Written in GCC's vector extensions, which clang has too, with as many lanes as a register of the
 * compilation's target: GCC keeps wider vectors in memory. Only what the extensions can't say, or
 * what a target does better by an instruction of its own, is said twice. This file knows nothing of
 * models.
 *
 * The library is compiled once for each kind of processor; see hatch_build.py.
 */
#ifndef OCTAVO_VECTOR_H
#define OCTAVO_VECTOR_H

#include <stdint.h>
#include <string.h>

#ifdef __AVX2__
#include <immintrin.h>
#endif
#ifdef __ARM_FEATURE_DOTPROD
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#define LANE_NUMBERS 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
#elif defined(__AVX2__)
#define LANES 8
#define LANE_NUMBERS 0, 1, 2, 3, 4, 5, 6, 7
#else
#define LANES 4
#define LANE_NUMBERS 0, 1, 2, 3
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float f32s __attribute__((vector_size(4 * LANES)));
typedef int32_t i32s __attribute__((vector_size(4 * LANES)));
typedef uint32_t u32s __attribute__((vector_size(4 * LANES)));
typedef uint16_t u16s __attribute__((vector_size(2 * LANES)));
typedef int8_t i8s __attribute__((vector_size(LANES)));

INLINE f32s load(const float *from)
{
    f32s x;
    memcpy(&x, from, sizeof x);
    return x;
}

/* The first ones alone, as many as there are; 0 in the other lanes. */
INLINE f32s load_first(const float *from, int count)
{
    if (count >= LANES)
        return load(from);
    float some[LANES] = {0};
    if (count > 0)
        memcpy(some, from, sizeof(float) * (size_t)count);
    return load(some);
}

INLINE void store(float *to, f32s x)
{
    memcpy(to, &x, sizeof x);
}

INLINE u32s load_bits(const void *from)
{
    u32s x;
    memcpy(&x, from, sizeof x);
    return x;
}

INLINE uint32_t load_word(const void *from)
{
    uint32_t x;
    memcpy(&x, from, sizeof x);
    return x;
}

INLINE f32s all(float x)
{
    return x - (f32s){};
}

INLINE i32s all_words(int32_t x)
{
    return x + (i32s){};
}

/* a where the mask is all ones, b where it is 0. */
INLINE f32s choose(i32s mask, f32s a, f32s b)
{
    return (f32s)((mask & (i32s)a) | (~mask & (i32s)b));
}

INLINE f32s larger(f32s a, f32s b)
{
#if defined(__AVX512F__)
    return (f32s)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (f32s)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return choose(a > b, a, b);
#endif
}

/* A bit for each lane of a mask, the first lane's lowest. */
INLINE uint32_t lanes_of(i32s mask)
{
#if defined(__AVX512DQ__)
    return _mm512_movepi32_mask((__m512i)mask);
#elif defined(__AVX2__)
    return (uint32_t)_mm256_movemask_ps((__m256)mask);
#else
    uint32_t lanes = 0;
    for (int lane = 0; lane < LANES; lane++)
        lanes |= (uint32_t)mask[lane] >> 31 << lane;
    return lanes;
#endif
}

INLINE f32s magnitude(f32s x)
{
    return (f32s)((u32s)x & 0x7FFFFFFFu);
}

/* Each lane added to, or compared with, the one that is `distance` further. */
#define TURNED(x, distance) __builtin_shuffle(x, (i32s){LANE_NUMBERS} ^ distance)

INLINE float sum(f32s x)
{
#if LANES > 8
    x += TURNED(x, 8);
#endif
#if LANES > 4
    x += TURNED(x, 4);
#endif
    x += TURNED(x, 2);
    x += TURNED(x, 1);
    return x[0];
}

INLINE float largest(f32s x)
{
#if LANES > 8
    x = larger(x, TURNED(x, 8));
#endif
#if LANES > 4
    x = larger(x, TURNED(x, 4));
#endif
    x = larger(x, TURNED(x, 2));
    x = larger(x, TURNED(x, 1));
    return x[0];
}

/* Of LANES vectors, which it overwrites, each one's total or largest lane, in the lane of its number:
 * two vectors become one of sums of half as many lanes, and so on. */

INLINE i32s picked(i32s a, i32s b, int distance)
{
    const i32s is_second = ((i32s){LANE_NUMBERS} & distance) != 0;
    return (is_second & b) | (~is_second & a);
}

#define FOLD(x, combine, distance)                                                                 \
    for (int i = 0; i < distance; i++)                                                             \
        x[i] = combine(picked(x[i], x[i + distance], distance),                                    \
                       TURNED(picked(x[i + distance], x[i], distance), distance))
#define FOLD_ALL(x, combine)                                                                       \
    if (LANES > 8)                                                                                 \
        FOLD(x, combine, 8);                                                                       \
    if (LANES > 4)                                                                                 \
        FOLD(x, combine, 4);                                                                       \
    FOLD(x, combine, 2);                                                                           \
    FOLD(x, combine, 1)
#define PLUS(a, b) ((a) + (b))
#define LARGER(a, b) ((i32s)larger((f32s)(a), (f32s)(b)))

INLINE i32s sum_of_each(i32s *x)
{
    FOLD_ALL(x, PLUS);
    return x[0];
}

INLINE f32s largest_of_each(i32s *x)
{
    FOLD_ALL(x, LARGER);
    return (f32s)x[0];
}

/* To the nearest integer, the even one of two; for magnitudes below 2^22, since it pushes the
 * fraction out of the mantissa. */
INLINE i32s rounded(f32s x)
{
    return (i32s)(x + 0x1.8p23f) - 0x4B400000;
}

/* 2^x, with a relative error below 1e-7 * |x| + 3e-7; exactly 1 for 0, and 0 below 2^-126. */
INLINE f32s exp2_of(f32s x)
{
#ifdef __AVX512DQ__
    f32s rest = (f32s)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT);
    f32s whole = x - rest;
#else
    i32s vanishes = x < -126.0f;
    x = larger(x, all(-126.0f));
    i32s whole = rounded(x);
    f32s rest = x - __builtin_convertvector(whole, f32s);
#endif
    f32s y = rest * 1.5403530e-4f + 1.3333558e-3f; /* the series of e^(rest ln 2) */
    y = y * rest + 9.6181291e-3f;
    y = y * rest + 5.5504109e-2f;
    y = y * rest + 2.4022651e-1f;
    y = y * rest + 6.9314718e-1f;
    y = y * rest + 1.0f;
#ifdef __AVX512DQ__
    return (f32s)_mm512_scalef_ps((__m512)y, (__m512)whole);
#else
    return (f32s)(((i32s)y + (whole << 23)) & ~vanishes);
#endif
}

/* Sums of integers begin with NOUGHT, below 2^22 in magnitude, and end as floats times a factor. Of
 * integers that are counted from the bits of 1.5 * 2^23, one instruction makes that: their floats are
 * as far from it, and factors of few bits, halves and bfloat16, times it are exact. */
#ifdef __AVX512F__
#define NOUGHT 0x4B400000
#else
#define NOUGHT 0
#endif

INLINE f32s scaled(i32s total, f32s factor)
{
#ifdef __AVX512F__
    return (f32s)_mm512_fmsub_ps((__m512)total, (__m512)factor, (__m512)(0x1.8p23f * factor));
#else
    return __builtin_convertvector(total, f32s) * factor;
#endif
}

/* acc + what four unsigned bytes of each lane weigh with the same four signed bytes. */
INLINE i32s dot_bytes(i32s acc, u32s bytes, uint32_t four)
{
#ifdef __AVX512VNNI__
    return (i32s)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)bytes, _mm512_set1_epi32((int)four));
#else
    for (int byte = 0; byte < 4; byte++)
        acc += (i32s)(bytes >> 8 * byte & 0xFFu) * (int32_t)(int8_t)(four >> 8 * byte);
    return acc;
#endif
}

/* The same for bytes below 16, at most eight times; then sum_of_nibbles tells what they add up to.
 * AVX2 multiplies bytes into sums of 16 bits, which have room for that. */
INLINE i32s dot_nibbles(i32s acc, u32s nibbles, uint32_t four)
{
#if LANES == 8
    const __m256i in = _mm256_set1_epi32((int)four);
    acc = (i32s)_mm256_add_epi16((__m256i)acc, _mm256_maddubs_epi16((__m256i)nibbles, in));
    __asm__("" : "+x"(acc)); /* or GCC adds only after more products than registers hold */
    return acc;
#elif defined(__ARM_FEATURE_DOTPROD)
    return (i32s)vdotq_s32((int32x4_t)acc, (int8x16_t)nibbles, (int8x16_t)vdupq_n_u32(four));
#else
    return dot_bytes(acc, nibbles, four);
#endif
}

INLINE i32s sum_of_nibbles(i32s acc)
{
#if LANES == 8
    return (i32s)_mm256_madd_epi16((__m256i)acc, _mm256_set1_epi16(1));
#else
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

INLINE f32s from_bf16(const uint16_t *from)
{
    u16s halves;
    memcpy(&halves, from, sizeof halves);
    return (f32s)(__builtin_convertvector(halves, u32s) << 16);
}

INLINE void store_bf16(uint16_t *to, f32s x)
{
#ifdef __AVX512BF16__
    __m256bh narrow = _mm512_cvtneps_pbh((__m512)x);
    memcpy(to, &narrow, sizeof narrow);
#else
    u32s bits = (u32s)x;
    u16s halves = __builtin_convertvector((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16, u16s);
    memcpy(to, &halves, sizeof halves);
#endif
}

/* Halves (IEEE 754's binary16), finite ones. */
INLINE f32s from_half(const uint16_t *from)
{
    u16s halves;
    memcpy(&halves, from, sizeof halves);
#if defined(__AVX512F__)
    return (f32s)_mm512_cvtph_ps((__m256i)halves);
#elif defined(__AVX2__) && defined(__F16C__)
    return (f32s)_mm256_cvtph_ps((__m128i)halves);
#else
    u32s bits = __builtin_convertvector(halves, u32s);
    f32s small = (f32s)((bits & 0x7FFFu) << 13) * 0x1p112f;
    return (f32s)((u32s)small | (bits & 0x8000u) << 16);
#endif
}

/* Sums of two products: each lane's pair of bfloat16, of a cache or of weights, with the same two
 * factors, which are kept as the processor multiplies them: as bfloat16, or else as floats. */

#ifdef __AVX512BF16__

typedef uint16_t Factor;
typedef u32s Pairs;

INLINE void store_factors(Factor *to, f32s x)
{
    store_bf16(to, x);
}

INLINE f32s load_factors(const Factor *from)
{
    return from_bf16(from);
}

INLINE Factor factor(float x)
{
    return bf16(x);
}

INLINE Pairs load_pairs(const void *from)
{
    return load_bits(from);
}

INLINE f32s dot_pairs(f32s acc, Pairs pairs, const Factor *two)
{
    return (f32s)_mm512_dpbf16_ps((__m512)acc, (__m512bh)pairs,
                                  (__m512bh)_mm512_set1_epi32((int)load_word(two)));
}

#else

typedef float Factor;
typedef struct {
    f32s first, second;
} Pairs;

INLINE void store_factors(Factor *to, f32s x)
{
    store(to, x);
}

INLINE f32s load_factors(const Factor *from)
{
    return load(from);
}

INLINE Factor factor(float x)
{
    return x;
}

INLINE Pairs load_pairs(const void *from)
{
    u32s both = load_bits(from);
    return (Pairs){(f32s)(both << 16), (f32s)(both & 0xFFFF0000u)};
}

INLINE f32s dot_pairs(f32s acc, Pairs pairs, const Factor *two)
{
    return acc + pairs.first * two[0] + pairs.second * two[1];
}

#endif

#endif
