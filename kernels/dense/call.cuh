// SPDX-License-Identifier: MIT
// kernels/dense/call.cuh - one call of dense decode attention: its tensors, which keys a row sees, what a split owns.
//
// Row r = (b * query_heads + h) * query_len + i is query i of head h of batch entry b; it reads KV head h / group. With
// T = length[0], clamped to [0, capacity], and end = min(T, pad_limit[b]) (T without pad_limit, or where it is
// negative)
//     row r sees the keys [0, stop), stop = end, or if causal clamp(i + end - query_len + 1, 0, end):
// the last query stands at the last key. Keys from stop on are not read. A mask is added to the score; where it is -inf
// its key does not count.
#pragma once

#include "common/softmax.cuh"
#include "dense/element.cuh"

// What every attention kernel takes first. mask and pad_limit may be null.
#define DENSE_INPUTS(T)                                                                                        \
  const T *__restrict__ query,           /* [batch, query_heads, query_len, D] */                              \
      const T *__restrict__ key,         /* [batch, kv_heads, capacity, D] */                                  \
      const T *__restrict__ value,       /* [batch, kv_heads, capacity, DV] */                                 \
      const float *__restrict__ mask,    /* [batch, query_len, capacity] */                                    \
      const int *__restrict__ pad_limit, /* [batch] */                                                         \
      const int *__restrict__ length,    /* [1]: the live length, read on the device */                        \
      int query_heads, int group, int query_len, int capacity, int head_size, int value_head_size, int causal, \
      float scale, float softcap
#define DENSE_CALL(T)                                                                                                \
  DenseCall<T> {                                                                                                     \
    query, key, value, mask, pad_limit, length, query_heads, group, query_len, capacity, head_size, value_head_size, \
        causal, scale, softcap                                                                                       \
  }

template <typename T>
struct DenseCall {
  const T *query, *key, *value;
  const float* mask;
  const int *pad_limit, *length;
  int query_heads, group, query_len, capacity, head_size, value_head_size, causal;
  float scale, softcap;
};

__device__ __forceinline__ int ceil_div(int numerator, int denominator) {
  return (numerator + denominator - 1) / denominator;
}

// T: what the host cannot know of a captured launch. Capacity is what it can.
__device__ __forceinline__ int live_length(const int* length, int capacity) {
  return min(max(__ldg(length), 0), capacity);
}

// Keys per split: `chunk`, or for the rule `live` at least `chunk` and enough for `splits` of them to cover T.
__device__ __forceinline__ int keys_per_split(int chunk, int live, int keys, int splits) {
  if (!live || keys <= static_cast<long long>(chunk) * splits) return chunk;  // no division before the first load
  return ceil_div(keys, splits);
}

// One row's tensors and the end of what it sees.
template <typename T>
struct DenseRow {
  const T *query, *key, *value;  // [D], [capacity, D], [capacity, DV]
  const float* mask;             // [capacity], or null
  int stop;
};

// One division where there is no mask, limit or causality: every CTA starts with this, also those that then see no key.
template <typename T>
__device__ __forceinline__ DenseRow<T> dense_row(const DenseCall<T>& call, unsigned row, int keys) {
  const auto query = [&] { return static_cast<int>(row % call.query_len); };
  const auto batch = [&] { return row / (call.query_len * call.query_heads); };
  // As group divides query_heads, the groups of all batch entries follow each other as their KV heads do.
  const size_t first_key = static_cast<size_t>(row / (call.query_len * call.group)) * call.capacity;
  int stop = keys;
  if (call.pad_limit != nullptr) {
    const int limit = __ldg(call.pad_limit + batch());
    stop = limit < 0 ? stop : min(stop, limit);
  }
  if (call.causal) stop = min(max(query() + stop - call.query_len + 1, 0), stop);
  return {call.query + static_cast<size_t>(row) * call.head_size, call.key + first_key * call.head_size,
          call.value + first_key * call.value_head_size,
          call.mask == nullptr ? nullptr
                               : call.mask + (static_cast<size_t>(batch()) * call.query_len + query()) * call.capacity,
          stop};
}

// A score from the scaled product: soft cap first, so that a mask of -inf stays one.
__device__ __forceinline__ float capped(float x, float softcap) {
  return softcap == 0.f ? x : softcap * tanhf(x / softcap);
}
