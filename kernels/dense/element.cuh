// SPDX-License-Identifier: MIT
// kernels/dense/element.cuh - the element types of the dense kernels: f32, f16 and bf16, all computed with in FP32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }

// Rounded to nearest even.
__device__ __forceinline__ void put(float* to, float x) { *to = x; }
__device__ __forceinline__ void put(__half* to, float x) { *to = __float2half_rn(x); }
__device__ __forceinline__ void put(__nv_bfloat16* to, float x) { *to = __float2bfloat16_rn(x); }

// Elements of 16 bytes.
template <typename T>
constexpr int kPerVector = 16 / sizeof(T);

// The elements of 16 bytes as FP32, exactly.
__device__ __forceinline__ void unpack_words(const unsigned (&words)[4], float (&x)[4], float) {
#pragma unroll
  for (int n = 0; n < 4; ++n) x[n] = __uint_as_float(words[n]);
}

__device__ __forceinline__ void unpack_words(const unsigned (&words)[4], float (&x)[8], __half) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&words[n]));
    x[2 * n] = pair.x;
    x[2 * n + 1] = pair.y;
  }
}

__device__ __forceinline__ void unpack_words(const unsigned (&words)[4], float (&x)[8], __nv_bfloat16) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {  // BF16 is the upper half of FP32
    x[2 * n] = __uint_as_float(words[n] << 16);
    x[2 * n + 1] = __uint_as_float(words[n] & 0xffff0000u);
  }
}

template <typename T>
__device__ __forceinline__ void unpack(const uint4& vector, float (&x)[kPerVector<T>]) {
  const unsigned words[4] = {vector.x, vector.y, vector.z, vector.w};
  unpack_words(words, x, T());
}
