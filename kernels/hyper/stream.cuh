// SPDX-License-Identifier: MIT
// kernels/hyper/stream.cuh - 16-byte accesses of what is read or written once, by one thread.
#pragma once

// Reads 16 bytes past L1 of what nobody writes meanwhile. In a row they stay in a row up to ptxas, which may still move
// some between the arithmetic to save registers (docs/hyper.md).
__device__ __forceinline__ uint4 load_once(const uint4* from) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from));
  return x;
}

// Writes 16 bytes that L2 may evict first: 4 % of the time of 8 streams read and 1 written (decision 0032).
__device__ __forceinline__ void store_once(uint4* to, const uint4& x) { __stcs(to, x); }
