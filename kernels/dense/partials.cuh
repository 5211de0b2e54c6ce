// SPDX-License-Identifier: MIT
// kernels/dense/partials.cuh - what a split of a row leaves for the kernel that combines them.
//
// Of the slice [s * chunk, min((s + 1) * chunk, T)) of row r, natural log: m = max x, l = sum exp(x - m),
// acc[d] = sum exp(x - m) * v[d], not divided by l. If T <= chunk, split 0 holds the whole row and leaves the finished
// vector with m = 0 and l = 1, on which combining changes no bit. A slice without a key leaves m = -inf and l = 0 and
// no vector; one whose keys are all masked a vector of zeros too.
#pragma once

#define DENSE_PARTIALS                                \
  float *__restrict__ acc,   /* [rows, splits, DV] */ \
      float *__restrict__ m, /* [rows, splits] */     \
      float *__restrict__ l, /* [rows, splits] */     \
      int chunk, int live

struct DensePartial {
  float *acc, *m, *l;  // [DV], [1], [1]
};

__device__ __forceinline__ DensePartial dense_partial(float* acc, float* m, float* l, int value_head_size) {
  const size_t at = static_cast<size_t>(blockIdx.x) * gridDim.y + blockIdx.y;
  return {acc + at * value_head_size, m + at, l + at};
}
