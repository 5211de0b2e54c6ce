// SPDX-License-Identifier: MIT
// kernels/dsa/int8_query.cuh - q * key_scale as the operand of a tensor-core product with INT8 codes: rounded to one
// FP16 number together with what that costs, or as four INT8 digits that lose less than FP32 would.
//
// The FP16 number  Q' = fp16(fp32(q * key_scale)), and the sum of |Q'|, which bounds what the rounding does to a logit.
// The digits       X = q * key_scale in units of 2^(k - 30), k such that over the head
//                  0.99 * 2^30 <= max |X| <= 1.985 * 2^30; X = sum D[i] * 256^(3 - i), -128 <= D[i] <= 127.
//                  A unit of X times a code is `unit` = scale * 2^(k - 30) nats. X is off by at most 1, because the
//                  rounding of the FP32 product is added to it: a logit by at most
//                  256 * 128 units < 2^-14.98 * scale * max |q * key_scale|. Below a largest product of some 2^-96,
//                  k is held at -96 and X is smaller: a logit is then off by less than 2^-111 nats.
#pragma once

#include <cuda_fp16.h>

#include "dsa/cache.cuh"

namespace int8_tc {

constexpr int kDigits = 4;

__device__ __forceinline__ unsigned half2_bits(__half2 x) { return reinterpret_cast<const unsigned&>(x); }

__device__ __forceinline__ float power_of_two(int exponent) {  // -126 <= exponent <= 127
  return __int_as_float((exponent + 127) << 23);
}

// The 8 channels that one lane folds, as FP32: BF16 is the upper half of FP32.
struct Channels {
  float q[8], key_scale[8];

  __device__ __forceinline__ Channels(uint4 bf16, const float (&scale)[8]) {
    const unsigned pairs[4] = {bf16.x, bf16.y, bf16.z, bf16.w};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      q[2 * n] = __uint_as_float(pairs[n] << 16);
      q[2 * n + 1] = __uint_as_float(pairs[n] & 0xffff0000u);
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) key_scale[n] = scale[n];
  }

  __device__ __forceinline__ __half2 rounded(int n) const {  // Q' of channels n and n + 2
    return __floats2half2_rn(q[n] * key_scale[n], q[n + 2] * key_scale[n + 2]);
  }
};

// Q' of one lane's channels [8i, 8i + 8), to target = the head's row + 16 * (i / 2) + 4 * (i % 2). Within 16 channels,
// in the order in which codes_to_half leaves the codes that a thread t of a quad gets from ldmatrix (channels 4t ..
// 4t + 3): the MMA's k = 2t, 2t + 1 are channels 4t, 4t + 2 and k = 2t + 8, 2t + 9 are channels 4t + 1, 4t + 3.
// Returns the sum of |Q'|, in FP16 in two parts.
__device__ __forceinline__ __half2 fold_half(const Channels& c, __half* target) {
  __half2 magnitude[2];
#pragma unroll
  for (int odd = 0; odd < 2; ++odd) {
    const __half2 low = c.rounded(odd), high = c.rounded(4 + odd);
    *reinterpret_cast<uint2*>(target + 8 * odd) = make_uint2(half2_bits(low), half2_bits(high));
    magnitude[odd] = __hadd2(__habs2(low), __habs2(high));
  }
  return __hadd2(magnitude[0], magnitude[1]);
}

// Whether eps = 128 * scale * sum_d |q * key_scale - Q'| of a head, by a full warp, is sure to be within `budget`: from
// the sum of |Q'|, of which this lane has `magnitude`, by a quarter of the instructions that eps itself takes.
// |q * key_scale - Q'| <= 2^-11 * 1.001 * |Q'| + 2^-25 (subnormal Q'), and adding in FP16 loses up to 3 * 2^-11 of the
// sum; 1.04 covers the three while 2^-10 * scale <= budget / 32. Infinite and NaN are not within.
__device__ __forceinline__ bool rounds_within(__half2 magnitude, float scale, float budget) {
  const float x = (__low2float(magnitude) + __high2float(magnitude)) * (scale * (128.f * 0x1p-11f * 1.04f / budget));
  // In units of 2^-20, rounded up, added as integers in one instruction: the minimum takes its other operand for NaN,
  // and adding 2^23 rounds and leaves its bits in each of the 32 terms.
  const unsigned units = __float_as_uint(__fadd_ru(fminf(x * 1048576.f, 2097152.f), 8388608.f));
  return __reduce_add_sync(0xffffffffu, units) - 32u * 0x4b000000u <= 1048576u;
}

// What folding decides of a head from its largest |q * key_scale|, the same in a full warp.
struct DigitScale {
  float factor;  // from the product to X
  float unit;    // NaN if an element of q or key_scale is not finite: each score of the head is +-inf or NaN in exact
                 // arithmetic too, and its softmax NaN. At most 2^80, which keeps each score below 2^127: above that,
                 // scores that differ do so by 2^80 nats either way.
};

__device__ __forceinline__ unsigned largest_product(const Channels& c) {  // its bits: NaN above infinity above the rest
  unsigned largest = 0;
#pragma unroll
  for (int n = 0; n < 8; ++n) largest = max(largest, __float_as_uint(fabsf(c.q[n] * c.key_scale[n])));
  return __reduce_max_sync(0xffffffffu, largest);
}

// If a product of finite factors overflows, this scales c by 2^-128.
__device__ __forceinline__ DigitScale digit_scale(Channels& c, float scale) {
  constexpr unsigned kInfinity = 0x7f800000u;
  float up = 1.f;
  unsigned largest = largest_product(c);
  if (largest >= kInfinity) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      c.q[n] *= power_of_two(-64);
      c.key_scale[n] *= power_of_two(-64);
    }
    up = power_of_two(64);
    largest = largest_product(c);
    if (largest >= kInfinity) return {0.f, __uint_as_float(0x7fffffffu)};  // although it has 2^-128 of its size
  }
  // The exponent, and 1 more from a mantissa of 1.984375 on: X must not pass 0x7f7f7f7f, the largest with four digits.
  const int k = max(static_cast<int>((largest + 0x20000u) >> 23) - 127, -96);
  return {power_of_two(30 - k), fminf(scale * up * power_of_two(k - 30) * up, power_of_two(80))};
}

// Digit d of one lane's channels to target + d * pitch.
__device__ __forceinline__ void fold_digits(const Channels& c, float factor, Code* target, int pitch) {
  // Rounding by adding 1.5 * 2^23: its bits then count units. (F2I has an eighth of the rate.) X = 2^16 * high + low.
  constexpr float kRound = 12582912.f;
  constexpr unsigned kRoundBits = 0x4b400000u;
  const float high_factor = factor * power_of_two(-16);
  unsigned word[8];  // byte 3 - d: digit d
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const float product = c.q[n] * c.key_scale[n];
    const float lost = fmaf(c.q[n], c.key_scale[n], -product);
    const float high = fmaf(product, high_factor, kRound);
    const float rest = fmaf(high - kRound, -65536.f, product * factor);  // exact, as are both products
    const float low = fmaf(lost, factor, rest) + kRound;
    // 0 .. 255 per byte, less 128 in each
    word[n] =
        (__float_as_uint(high) * 65536u + __float_as_uint(low) + (0x80808080u - kRoundBits * 65536u - kRoundBits)) ^
        0x80808080u;
  }
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const unsigned* w = word + 4 * n;
    const unsigned low01 = __byte_perm(w[0], w[1], 0x5140), low23 = __byte_perm(w[2], w[3], 0x5140);
    const unsigned high01 = __byte_perm(w[0], w[1], 0x7362), high23 = __byte_perm(w[2], w[3], 0x7362);
    const unsigned of_digit[kDigits] = {__byte_perm(high01, high23, 0x7632), __byte_perm(high01, high23, 0x5410),
                                        __byte_perm(low01, low23, 0x7632), __byte_perm(low01, low23, 0x5410)};
#pragma unroll
    for (int d = 0; d < kDigits; ++d) *reinterpret_cast<unsigned*>(target + d * pitch + 4 * n) = of_digit[d];
  }
}

// The sum over the channels of X times code, from the sums of the digits (below 2^23 each), rounded twice.
__device__ __forceinline__ float combine_digits(int d0, int d1, int d2, int d3) {
  return fmaf(static_cast<float>(256 * d0 + d1), 65536.f, static_cast<float>(256 * d2 + d3));
}

}  // namespace int8_tc
