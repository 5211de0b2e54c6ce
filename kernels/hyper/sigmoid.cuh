// SPDX-License-Identifier: MIT
// kernels/hyper/sigmoid.cuh - the two sigmoids of the hyper-connection kernels, and 8 BF16 numbers per 16-byte access.
//
// Both compute 1 / (1 + e) for v >= 0 and e / (1 + e) for v < 0 and NaN, with e = expf(-|v|), each operation rounded to
// nearest, so they agree bit for bit; `sigmoid_differences` counts where they don't. v is FP32 and FP32 denormals are
// kept: a sigmoid of v < -87.3 is subnormal. No operation may be contracted, so sums are spelt as intrinsics.
#pragma once

#include <cuda_bf16.h>

namespace hyper {

// As the model's operator had it: two sides, each with its exponential and its IEEE division. With -|v| for the
// argument on both sides the compiler would merge them; spelt like this it keeps the branch (docs/hyper.md).
__device__ __forceinline__ float sigmoid_branchy(float v) {
  if (v >= 0.f) return 1.f / __fadd_rn(1.f, expf(-v));
  const float e = expf(v);
  return e / __fadd_rn(1.f, e);
}

// false: the divisor's reciprocal is not trusted and n / d is the compiler's division, which tests for operands out of
// range and calls a slow path for them.
constexpr bool kShortDivision = true;

// n / d rounded to nearest, for d = fl(1 + e) with e in [0, 1], and n = e or n = 1. Nothing can overflow, and where e
// is subnormal d is 1, so the slow path of an IEEE division is never needed: a reciprocal, a quotient and one
// correction. That this rounds as the division does holds for every e and every reciprocal within 1 ulp of 1 / d but
// one, that of 2 - 2^-23, which must be 0.5 + 2^-24 (decision 0024); NaN stays NaN.
__device__ __forceinline__ float divide(float n, float d) {
  if constexpr (!kShortDivision) return n / d;
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(d));
  const float quotient = __fmul_rn(n, reciprocal);
  return __fmaf_rn(__fmaf_rn(-quotient, d, n), reciprocal, quotient);
}

__device__ __forceinline__ float sigmoid_branch_free(float v) {
  const float e = expf(-fabsf(v));
  return divide(v >= 0.f ? 1.f : e, __fadd_rn(1.f, e));
}

struct Branchy {
  static __device__ __forceinline__ float sigmoid(float v) { return sigmoid_branchy(v); }
};

struct BranchFree {
  static __device__ __forceinline__ float sigmoid(float v) { return sigmoid_branch_free(v); }
};

// silu(x / 4), the activation of the low-rank projection: x / 4 is exact.
template <typename Form>
__device__ __forceinline__ float scaled_silu(float x) {
  const float quarter = __fmul_rn(0.25f, x);
  return __fmul_rn(quarter, Form::sigmoid(quarter));
}

constexpr int kWide = 8;  // BF16 numbers of a vector, one 16-byte access

__device__ __forceinline__ void unpack(const uint4& vector, float (&x)[kWide]) {
  const unsigned words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    x[2 * n] = __uint_as_float(words[n] << 16);
    x[2 * n + 1] = __uint_as_float(words[n] & 0xffff0000u);
  }
}

__device__ __forceinline__ unsigned bf16x2_bits(float x, float y) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
  return reinterpret_cast<const unsigned&>(pair);
}

__device__ __forceinline__ uint4 pack(const float (&x)[kWide]) {
  return make_uint4(bf16x2_bits(x[0], x[1]), bf16x2_bits(x[2], x[3]), bf16x2_bits(x[4], x[5]), bf16x2_bits(x[6], x[7]));
}

}  // namespace hyper
