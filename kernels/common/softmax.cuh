// SPDX-License-Identifier: MIT
// kernels/common/softmax.cuh - natural-log softmax arithmetic that never computes inf - inf.
//
// Scores and maxima stay in the natural-log domain; only a difference is scaled by log2(e). Scaling each score first
// would lose a gap of 0.5 between 8290560 and 8290560.5 to rounding.
#pragma once

#include "common/ptx.cuh"

__device__ __forceinline__ float minus_infinity() { return __int_as_float(0xff800000); }

// What to subtract from scores whose maximum is m: m, or 0 while there is no score yet, so that exp(-inf - 0) = 0.
__device__ __forceinline__ float softmax_reference(float m) { return m == minus_infinity() ? 0.f : m; }

constexpr float kLog2E = 1.44269504088896341f;

__device__ __forceinline__ float exp_difference(float x, float reference) { return ex2((x - reference) * kLog2E); }

// What a sum relative to the maximum `from` is worth relative to `to` >= `from`; 1 if they are equal, also at -inf.
__device__ __forceinline__ float rescale_factor(float from, float to) {
  return from == to ? 1.f : exp_difference(from, to);
}

// Its square root, for what is multiplied twice: a factor down to 2^-252 where rescale_factor is 0 below 2^-126.
__device__ __forceinline__ float root_of_rescale_factor(float from, float to) {
  return from == to ? 1.f : ex2((from - to) * (0.5f * kLog2E));
}
