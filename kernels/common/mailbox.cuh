// SPDX-License-Identifier: MIT
// kernels/common/mailbox.cuh - what one CTA leaves in global memory for another that runs at the same time, without
// flags, counters or fences: a place is empty until something is left there, and empty again once it was taken.
//
// All places are empty before a launch and after it, so that launches of any sizes may follow each other over them; who
// takes from a place is alone in that, and waits for all that is left before emptying it. Each word speaks for itself,
// whatever becomes visible first.
#pragma once

// A NaN that no operation gives: a result that is NaN is 0x7fffffff.
constexpr unsigned kEmpty = 0xffffffffu;

__device__ __forceinline__ bool is_empty(float x) { return __float_as_uint(x) == kEmpty; }
__device__ __forceinline__ bool is_empty(float2 x) { return is_empty(x.x) || is_empty(x.y); }
__device__ __forceinline__ bool is_empty(float4 x) {
  return is_empty(x.x) || is_empty(x.y) || is_empty(x.z) || is_empty(x.w);
}

__device__ __forceinline__ void leave(float* place, float x) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(place), "f"(x) : "memory");
}
__device__ __forceinline__ void leave(float2* place, float2 x) {
  asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(place), "f"(x.x), "f"(x.y) : "memory");
}
__device__ __forceinline__ void leave(float4* place, float4 x) {
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(place), "f"(x.x), "f"(x.y), "f"(x.z),
               "f"(x.w)
               : "memory");
}

// x becomes what is at `place`, if it is empty so far.
__device__ __forceinline__ void look(const float2* place, float2& x) {
  asm volatile("{ .reg .pred p;\n setp.ne.s32 p, %3, 0;\n @p ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2]; }"
               : "+f"(x.x), "+f"(x.y)
               : "l"(place), "r"(static_cast<int>(is_empty(x)))
               : "memory");
}
__device__ __forceinline__ void look(const float4* place, float4& x) {
  asm volatile("{ .reg .pred p;\n setp.ne.s32 p, %5, 0;\n @p ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4]; }"
               : "+f"(x.x), "+f"(x.y), "+f"(x.z), "+f"(x.w)
               : "l"(place), "r"(static_cast<int>(is_empty(x)))
               : "memory");
}

// The same for kCount places, `stride` apart; whether one is empty still.
template <int kCount, typename T>
__device__ __forceinline__ bool look(T (&x)[kCount], const T* places, int stride) {
#pragma unroll
  for (int n = 0; n < kCount; ++n) look(places + n * stride, x[n]);
  bool missing = false;
#pragma unroll
  for (int n = 0; n < kCount; ++n) missing |= is_empty(x[n]);
  return missing;
}
