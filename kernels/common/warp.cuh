// SPDX-License-Identifier: MIT
// kernels/common/warp.cuh - reductions over the lanes of a full warp whose indices differ in the bits of kLanes.
#pragma once

template <int kLanes>
__device__ __forceinline__ float lanes_max(float x) {
#pragma unroll
  for (int bit = 1; bit < 32; bit *= 2)
    if (kLanes & bit) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, bit));
  return x;
}

template <int kLanes>
__device__ __forceinline__ float lanes_sum(float x) {
#pragma unroll
  for (int bit = 1; bit < 32; bit *= 2)
    if (kLanes & bit) x += __shfl_xor_sync(0xffffffffu, x, bit);
  return x;
}
