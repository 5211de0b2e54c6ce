// SPDX-License-Identifier: MIT
// kernels/dense/vector_load.cuh - a load of 16 bytes that happens or doesn't, without a branch around it.
#pragma once

// Reads 16 bytes of what nobody writes meanwhile; zeros, and nothing is read, unless `wanted`. A predicate, so that the
// loads of a step stay in one run and are all in flight together; volatile, so that they stay in their place. Not
// L1::no_allocate: with it, on an H200, a cache read by every launch took up to 2 us longer (decision 0036).
__device__ __forceinline__ uint4 load_vector(const void* from, bool wanted) {
  uint4 x;
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %5, 0;\n"
      "  mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;\n"
      "  @p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4]; }"
      : "=&r"(x.x), "=&r"(x.y), "=&r"(x.z), "=&r"(x.w)
      : "l"(from), "r"(static_cast<int>(wanted)));
  return x;
}
