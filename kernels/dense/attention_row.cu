// SPDX-License-Identifier: MIT
// kernels/dense/attention_row.cu - dense decode attention as the document of issue 004 has it: one thread per key for
// the scores, one thread per channel for the output. `previous` of dense decode.
//
// Computes  for row r over the keys j that it sees (dense/call.cuh), in FP32, natural log:
//             x[j] = cap(sum_d (q[d] * sqrt(scale)) * (k[j,d] * sqrt(scale))) + mask[j], d ascending, scores first
//             m = max x;   p[j] = exp(x[j] - m);   l = sum p[j];   out[c] = sum p[j] * v[j,c] / l, j ascending
//           A row that sees no key, or only keys masked by -inf, gives zeros.
//           attention_row_*      all keys of a row.
//           attention_split_*    the slice of a split; leaves partials (dense/partials.cuh). Where T <= chunk, split 0
//                                makes the bits of attention_row.
//           attention_combine_*  out = sum w[s] * acc[s] / sum w[s] * l[s], w[s] = exp(m[s] - max m), s ascending.
//           The suffix is the type of query, key, value and out: f32, f16, bf16.
// Grid      attention_row (rows). attention_split (rows, splits): CTA (r, s) owns slice s. attention_combine (rows).
// Block     256 threads; attention_combine 128.
// Needs     buffers aligned to their elements; head_size <= 512; capacity < 2^30; splits >= 1 with splits * chunk >=
//           capacity, or live. `scores`, FP32 [rows, capacity], is scratch of the call. attention_combine takes acc, m
//           and l as attention_split leaves them.
// Leaves    attention_row, attention_combine: every element of out. attention_split: every m and l, and every vector of
//           a slice with keys. `length` is read by every CTA, so a captured launch follows it; the grid need not.
#include "common/fact.cuh"
#include "common/ptx.cuh"
#include "common/warp.cuh"
#include "dense/call.cuh"
#include "dense/partials.cuh"

namespace dense {

constexpr int kThreads = 256;
constexpr int kCombineThreads = 128;
constexpr int kMaxHeadSize = 512;

struct Smem {
  float query[kMaxHeadSize];  // times sqrt(scale)
  float max[kThreads / 32];   // of each warp
};

// The maximum over the CTA; in any order the same bits.
__device__ __forceinline__ float block_max(float x, Smem& smem) {
  x = lanes_max<31>(x);
  if (threadIdx.x % 32 == 0) smem.max[threadIdx.x / 32] = x;
  __syncthreads();  // every warp's maximum is published, and this thread's scores are visible to the others
  float max = smem.max[0];
#pragma unroll
  for (int w = 1; w < kThreads / 32; ++w) max = fmaxf(max, smem.max[w]);
  return max;
}

// Scores and probabilities of the keys [begin, end) into `scores`. Returns their maximum.
template <typename T>
__device__ __forceinline__ float probabilities(const DenseCall<T>& call, const DenseRow<T>& row, int begin, int end,
                                               float* scores, Smem& smem) {
  const float root = __fsqrt_rn(call.scale);
  for (int d = threadIdx.x; d < call.head_size; d += kThreads)
    smem.query[d] = __fmul_rn(to_float(__ldg(row.query + d)), root);
  __syncthreads();  // the query is published

  float max = minus_infinity();
  for (int j = begin + static_cast<int>(threadIdx.x); j < end; j += kThreads) {
    const T* k = row.key + static_cast<size_t>(j) * call.head_size;
    float x = 0.f;
#pragma unroll 16
    for (int d = 0; d < call.head_size; ++d) x = fmaf(smem.query[d], __fmul_rn(to_float(__ldg(k + d)), root), x);
    x = capped(x, call.softcap);
    if (row.mask != nullptr) x = __fadd_rn(x, __ldg(row.mask + j));
    scores[j] = x;
    max = fmaxf(max, x);
  }
  max = block_max(max, smem);
  const float reference = softmax_reference(max);
  for (int j = begin + static_cast<int>(threadIdx.x); j < end; j += kThreads)
    scores[j] = exp_difference(scores[j], reference);
  __syncthreads();  // the probabilities are published
  return max;
}

// What the keys [begin, end) come to in one channel.
struct Channel {
  float acc = 0.f, l = 0.f;

  __device__ __forceinline__ float mean() const { return l == 0.f ? 0.f : __fdiv_rn(acc, l); }
};

template <typename T>
__device__ __forceinline__ Channel sum_values(const DenseCall<T>& call, const DenseRow<T>& row, int begin, int end,
                                              const float* scores, int channel) {
  Channel sum;
  const T* v = row.value + static_cast<size_t>(begin) * call.value_head_size + channel;
#pragma unroll 8
  for (int j = begin; j < end; ++j, v += call.value_head_size) {
    const float p = scores[j];
    sum.l = __fadd_rn(sum.l, p);
    sum.acc = fmaf(p, to_float(__ldg(v)), sum.acc);
  }
  return sum;
}

template <typename T>
__device__ __forceinline__ void attend_row(const DenseCall<T>& call, float* scores, T* out) {
  __shared__ Smem smem;
  const DenseRow<T> row = dense_row(call, blockIdx.x, live_length(call.length, call.capacity));
  scores += static_cast<size_t>(blockIdx.x) * call.capacity;
  out += static_cast<size_t>(blockIdx.x) * call.value_head_size;
  probabilities(call, row, 0, row.stop, scores, smem);
  for (int c = threadIdx.x; c < call.value_head_size; c += kThreads)
    put(out + c, sum_values(call, row, 0, row.stop, scores, c).mean());
}

template <typename T>
__device__ __forceinline__ void attend_slice(const DenseCall<T>& call, float* scores, const DensePartial& to, int chunk,
                                             int live) {
  __shared__ Smem smem;
  const int keys = live_length(call.length, call.capacity);
  chunk = keys_per_split(chunk, live, keys, gridDim.y);
  const int begin = blockIdx.y * chunk;
  if (begin >= keys) {
    if (threadIdx.x == 0) {
      *to.m = minus_infinity();
      *to.l = 0.f;
    }
    return;
  }
  const bool whole = keys <= chunk;
  const DenseRow<T> row = dense_row(call, blockIdx.x, keys);
  const int end = min(begin + chunk, row.stop);
  scores += static_cast<size_t>(blockIdx.x) * call.capacity;
  const float max = probabilities(call, row, begin, end, scores, smem);
  for (int c = threadIdx.x; c < call.value_head_size; c += kThreads) {
    const Channel sum = sum_values(call, row, begin, end, scores, c);
    to.acc[c] = whole ? sum.mean() : sum.acc;
    if (c == 0) {
      *to.m = whole ? 0.f : max;
      *to.l = whole ? 1.f : sum.l;
    }
  }
}

template <typename T>
__device__ __forceinline__ void combine(const float* acc, const float* m, const float* l, T* out, int splits,
                                        int value_head_size) {
  const size_t first = static_cast<size_t>(blockIdx.x) * splits;
  acc += first * value_head_size;
  m += first;
  l += first;
  pdl_wait();

  float max = minus_infinity();
  for (int s = 0; s < splits; ++s) max = fmaxf(max, __ldcg(m + s));
  for (int c = threadIdx.x; c < value_head_size; c += kCombineThreads) {
    float x = 0.f, sum = 0.f;
    bool first_term = true;  // not added to 0: a finished vector may hold -0
#pragma unroll 4
    for (int s = 0; s < splits; ++s) {
      const float of_split = __ldcg(l + s);
      if (of_split == 0.f) continue;
      const float w = rescale_factor(__ldcg(m + s), max),
                  term = __ldcg(acc + static_cast<size_t>(s) * value_head_size + c);
      x = first_term ? __fmul_rn(w, term) : fmaf(w, term, x);
      sum = first_term ? __fmul_rn(w, of_split) : fmaf(w, of_split, sum);
      first_term = false;
    }
    put(out + static_cast<size_t>(blockIdx.x) * value_head_size + c, sum == 0.f ? 0.f : __fdiv_rn(x, sum));
  }
}

}  // namespace dense

#define DENSE_KERNELS(T, type)                                                                                      \
  KERNEL_FACT(attention_row_##type, threads, dense::kThreads);                                                      \
  KERNEL_FACT(attention_row_##type, smem_bytes, 0);                                                                 \
  KERNEL_FACT(attention_row_##type, max_head_size, dense::kMaxHeadSize);                                            \
  extern "C" __global__ void __launch_bounds__(dense::kThreads)                                                     \
      attention_row_##type(DENSE_INPUTS(T), float* __restrict__ scores, T* __restrict__ out) {                      \
    dense::attend_row(DENSE_CALL(T), scores, out);                                                                  \
  }                                                                                                                 \
                                                                                                                    \
  KERNEL_FACT(attention_split_##type, threads, dense::kThreads);                                                    \
  KERNEL_FACT(attention_split_##type, smem_bytes, 0);                                                               \
  KERNEL_FACT(attention_split_##type, max_head_size, dense::kMaxHeadSize);                                          \
  extern "C" __global__ void __launch_bounds__(dense::kThreads)                                                     \
      attention_split_##type(DENSE_INPUTS(T), float* __restrict__ scores, DENSE_PARTIALS) {                         \
    dense::attend_slice(DENSE_CALL(T), scores, dense_partial(acc, m, l, value_head_size), chunk, live);             \
  }                                                                                                                 \
                                                                                                                    \
  KERNEL_FACT(attention_combine_##type, threads, dense::kCombineThreads);                                           \
  KERNEL_FACT(attention_combine_##type, smem_bytes, 0);                                                             \
  extern "C" __global__ void __launch_bounds__(dense::kCombineThreads)                                              \
      attention_combine_##type(const float* __restrict__ acc, const float* __restrict__ m,                          \
                               const float* __restrict__ l, T* __restrict__ out, int splits, int value_head_size) { \
    dense::combine(acc, m, l, out, splits, value_head_size);                                                        \
  }

DENSE_KERNELS(float, f32)
DENSE_KERNELS(__half, f16)
DENSE_KERNELS(__nv_bfloat16, bf16)
