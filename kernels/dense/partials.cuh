// SPDX-License-Identifier: MIT
// kernels/dense/partials.cuh - what a split of a row leaves for whoever combines them.
//
// Of the slice [s * chunk, min((s + 1) * chunk, T)) of row r, natural log: m = max x, l = sum exp(x - m),
// acc[d] = sum exp(x - m) * v[d], not divided by l; m = -inf, l = 0 and zeros if all its keys are masked.
//   attention_split  A slice without a key leaves m = -inf and l = 0 and no vector. If T <= chunk, split 0 holds the
//                    whole row and leaves the finished vector with m = 0 and l = 1: combining then changes no bit.
//   fast_split       A slice of which the row sees no key leaves nothing, nor does the only one of which it sees some.
#pragma once

#define DENSE_PARTIALS                                \
  float *__restrict__ acc,   /* [rows, splits, DV] */ \
      float *__restrict__ m, /* [rows, splits] */     \
      float *__restrict__ l, /* [rows, splits] */     \
      int chunk, int live

struct DensePartial {
  float *acc, *m, *l;  // [DV], [1], [1]
};

// Of split 0 of the CTA's row; the others follow.
__device__ __forceinline__ DensePartial first_partial(float* acc, float* m, float* l, int value_head_size) {
  const size_t at = static_cast<size_t>(blockIdx.x) * gridDim.y;
  return {acc + at * value_head_size, m + at, l + at};
}

// Of the CTA itself.
__device__ __forceinline__ DensePartial dense_partial(float* acc, float* m, float* l, int value_head_size) {
  const DensePartial first = first_partial(acc, m, l, value_head_size);
  const unsigned split = blockIdx.y;
  return {first.acc + static_cast<size_t>(split) * value_head_size, first.m + split, first.l + split};
}
