// SPDX-License-Identifier: MIT
// kernels/dense/attention_fast.cu - dense decode attention for the memory system: 16-byte loads of whole lines, several
// keys of a warp in flight, softmax online and per group of lanes. `fast` of dense decode.
//
// Computes  what dense/attention_row.cu does, in FP32, natural log, with other orders of summation:
//             x[j] = cap(sum_d (q[d] * scale) * k[j,d]) + mask[j];   m, l, acc online
//           A row that sees no key, or only keys masked by -inf, gives zeros.
//           fast_row_*      all keys of a row.
//           fast_split_*    the slice of a split; leaves partials (dense/partials.cuh). Where T <= chunk, split 0 makes
//                           the bits of fast_row.
//           fast_combine_*  the merged output. Takes the partials of fast_split_* with the same chunk, live and length.
//           The suffix is the type of query, key, value and out: f32, f16, bf16.
// Built for KEY_VECTORS = ceil(head_size / 64) and VALUE_VECTORS = ceil(value_head_size / 64), 1 to 4 each; without
//           these defines for the document's shape, head sizes 129 to 192 for keys and 65 to 128 for values.
// Grid      fast_row (rows). fast_split (rows, splits): CTA (r, s) owns slice s. fast_combine (rows, ceil(DV / 128)).
// Block     128 threads; fast_combine 256. A group of lanes (8 for 2-byte elements, 16 for f32) holds one key's row in
//           vectors of 16 bytes: lane i vectors i, i + lanes, ... A warp takes every 4th run of kKeys keys per group.
// Needs     head_size and value_head_size multiples of 16 bytes, at most fast_row_*_max_head_size and
//           _max_value_head_size; query, key, value and acc 16-byte aligned; capacity < 2^30; splits <= 64 with splits
//           * chunk >= capacity, or live. PDL: fast_split lets fast_combine start early; that waits before it reads
//           partials, and not for `length`, which must be written before fast_split is launched.
// Leaves    fast_row, fast_combine: every element of out. fast_split: every m and l, and every vector of a slice with
//           keys. `length` is read by every CTA, so a captured launch follows it; the grid need not.
#include "common/fact.cuh"
#include "common/ptx.cuh"
#include "common/warp.cuh"
#include "dense/call.cuh"
#include "dense/partials.cuh"
#include "dense/vector_load.cuh"

#ifndef KEY_VECTORS
#define KEY_VECTORS 3
#endif
#ifndef VALUE_VECTORS
#define VALUE_VECTORS 2
#endif

namespace fast {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kKeys = 2;  // keys of a group per step; K of the next step is in flight with V of this one
constexpr int kKeyVectors = KEY_VECTORS, kValueVectors = VALUE_VECTORS;
static_assert(1 <= kKeyVectors && kKeyVectors <= 4 && 1 <= kValueVectors && kValueVectors <= 4, "head sizes up to 256");
constexpr int kChannelsPerVector = 64;  // of all lanes of a group: 8 lanes x 8 elements, 16 x 4
constexpr int kMaxHeadSize = kChannelsPerVector * kKeyVectors;
constexpr int kMaxValueHeadSize = kChannelsPerVector * kValueVectors;

// CTAs per SM by the registers that a thread holds: keys of two steps, values of one, query and sums as FP32.
constexpr int kHeld = 24 * kKeyVectors + 16 * kValueVectors + 24;
constexpr int kResident = kHeld <= 128 ? 4 : kHeld <= 168 ? 3 : 2;

template <typename T>
constexpr int kLanes = sizeof(T) == 4 ? 16 : 8;  // of a group
template <typename T>
constexpr int kGroups = 32 / kLanes<T>;
template <typename T>
constexpr int kStep = kGroups<T> * kKeys;  // keys of a warp per step

struct Smem {
  alignas(16) float acc[kWarps][kMaxValueHeadSize];  // stored 16 bytes at a time
  float max[kWarps], sum[kWarps];
};

// What a group, a warp or a CTA has summed. acc: this lane's channels.
template <typename T>
struct Sums {
  float max = minus_infinity(), l = 0.f;
  float acc[kValueVectors][kPerVector<T>] = {};

  // Intrinsics, here and where sums are made: whatever surrounds them, the compiler fuses no product into a sum, so
  // fast_row and fast_split make the same bits.
  __device__ __forceinline__ void scale_to(float new_max) {
    const float factor = rescale_factor(max, new_max);
    max = new_max;
    l = __fmul_rn(l, factor);
#pragma unroll
    for (int n = 0; n < kValueVectors; ++n)
#pragma unroll
      for (int e = 0; e < kPerVector<T>; ++e) acc[n][e] = __fmul_rn(acc[n][e], factor);
  }
};

// This lane's vectors of the rows of keys first, first + kGroups, ...; those from `end` on are zeros.
template <typename T, int kVectors>
__device__ __forceinline__ void load_rows(const T* rows, int first, int end, int size, uint4 (&x)[kKeys][kVectors]) {
  const int channel = threadIdx.x % kLanes<T> * kPerVector<T>;
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    const int key = first + i * kGroups<T>;
    const T* from = rows + static_cast<size_t>(static_cast<unsigned>(key)) * size + channel;
#pragma unroll
    for (int n = 0; n < kVectors; ++n)
      x[i][n] = load_vector(from + n * kChannelsPerVector, key < end && channel + n * kChannelsPerVector < size);
  }
}

// One warp's share of the keys [begin, end): its groups' sums, added up, in every group.
template <typename T>
__device__ __forceinline__ Sums<T> attend(const DenseCall<T>& call, const DenseRow<T>& row, int begin, int end) {
  const int warp = threadIdx.x / 32, group = threadIdx.x % 32 / kLanes<T>;
  const int channel = threadIdx.x % kLanes<T> * kPerVector<T>;
  uint4 key[kKeys][kKeyVectors];
  int first = begin + warp * kStep<T>;  // of the warp's step
  load_rows(row.key, first + group, end, call.head_size, key);

  float q[kKeyVectors][kPerVector<T>];
#pragma unroll
  for (int n = 0; n < kKeyVectors; ++n) {
    const int at = channel + n * kChannelsPerVector;
    unpack<T>(load_vector(row.query + at, at < call.head_size), q[n]);
#pragma unroll
    for (int e = 0; e < kPerVector<T>; ++e) q[n][e] = __fmul_rn(q[n][e], call.scale);
  }

  Sums<T> sums;
  for (; first < end; first += kWarps * kStep<T>) {
    uint4 value[kKeys][kValueVectors], next_key[kKeys][kKeyVectors];
    load_rows(row.value, first + group, end, call.value_head_size, value);
    load_rows(row.key, first + kWarps * kStep<T> + group, end, call.head_size, next_key);

    float x[kKeys], max = sums.max;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const int j = first + group + i * kGroups<T>;
      float part[2] = {0.f, 0.f};  // two chains of additions
#pragma unroll
      for (int n = 0; n < kKeyVectors; ++n) {
        float k[kPerVector<T>];
        unpack<T>(key[i][n], k);
#pragma unroll
        for (int e = 0; e < kPerVector<T>; ++e) part[e % 2] = fmaf(q[n][e], k[e], part[e % 2]);
      }
      x[i] = capped(lanes_sum<kLanes<T> - 1>(__fadd_rn(part[0], part[1])), call.softcap);
      if (row.mask != nullptr && j < end) x[i] = __fadd_rn(x[i], __ldg(row.mask + j));
      x[i] = j < end ? x[i] : minus_infinity();
      max = fmaxf(max, x[i]);
    }
    sums.scale_to(max);
    const float reference = softmax_reference(max);
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      const float p = exp_difference(x[i], reference);
      sums.l = __fadd_rn(sums.l, p);
#pragma unroll
      for (int n = 0; n < kValueVectors; ++n) {
        float v[kPerVector<T>];
        unpack<T>(value[i][n], v);
#pragma unroll
        for (int e = 0; e < kPerVector<T>; ++e) sums.acc[n][e] = fmaf(p, v[e], sums.acc[n][e]);
      }
    }
#pragma unroll
    for (int i = 0; i < kKeys; ++i)
#pragma unroll
      for (int n = 0; n < kKeyVectors; ++n) key[i][n] = next_key[i][n];
  }

  constexpr int kOtherGroups = 31 - (kLanes<T> - 1);
  sums.scale_to(lanes_max<kOtherGroups>(sums.max));
  sums.l = lanes_sum<kOtherGroups>(sums.l);
#pragma unroll
  for (int n = 0; n < kValueVectors; ++n)
#pragma unroll
    for (int e = 0; e < kPerVector<T>; ++e) sums.acc[n][e] = lanes_sum<kOtherGroups>(sums.acc[n][e]);
  return sums;
}

// The CTA's sums over the keys [begin, end). Returns (m, l); take(channel, acc) gets every channel once.
template <typename T, typename Take>
__device__ __forceinline__ float2 attend_block(const DenseCall<T>& call, const DenseRow<T>& row, int begin, int end,
                                               Take take) {
  __shared__ Smem smem;
  const Sums<T> sums = attend(call, row, begin, end);
  pdl_launch_dependents();  // not before: the CTAs that the dependent launch starts would take the place of ours
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (lane == 0) {
    smem.max[warp] = sums.max;
    smem.sum[warp] = sums.l;
  }
  if (lane < kLanes<T>) {
#pragma unroll
    for (int n = 0; n < kValueVectors; ++n)
#pragma unroll
      for (int e = 0; e < kPerVector<T>; e += 4)
        *reinterpret_cast<float4*>(&smem.acc[warp][n * kChannelsPerVector + lane * kPerVector<T> + e]) =
            make_float4(sums.acc[n][e], sums.acc[n][e + 1], sums.acc[n][e + 2], sums.acc[n][e + 3]);
  }
  __syncthreads();  // the sums of all warps are published

  float max = smem.max[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) max = fmaxf(max, smem.max[w]);
  float weight[kWarps], l = 0.f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    weight[w] = rescale_factor(smem.max[w], max);
    l = fmaf(weight[w], smem.sum[w], l);
  }
  for (int c = threadIdx.x; c < call.value_head_size; c += kThreads) {
    float x = 0.f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) x = fmaf(weight[w], smem.acc[w][c], x);
    take(c, x, l);
  }
  return make_float2(max, l);
}

__device__ __forceinline__ float mean(float acc, float l) { return l == 0.f ? 0.f : __fdiv_rn(acc, l); }

template <typename T>
__device__ __forceinline__ void attend_row(const DenseCall<T>& call, T* out) {
  const DenseRow<T> row = dense_row(call, blockIdx.x, live_length(call.length, call.capacity));
  out += static_cast<size_t>(blockIdx.x) * call.value_head_size;
  attend_block(call, row, 0, row.stop, [&](int c, float acc, float l) { put(out + c, mean(acc, l)); });
}

template <typename T>
__device__ __forceinline__ void attend_slice(const DenseCall<T>& call, const DensePartial& to, int chunk, int live) {
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
  const float2 sums = attend_block(call, row, begin, min(begin + chunk, row.stop),
                                   [&](int c, float acc, float l) { to.acc[c] = whole ? mean(acc, l) : acc; });
  if (threadIdx.x == 0) {
    *to.m = whole ? 0.f : sums.x;
    *to.l = whole ? 1.f : sums.y;
  }
}

constexpr int kCombineThreads = 256;
constexpr int kCombineWarps = kCombineThreads / 32;
constexpr int kCombineTile = 128;                   // channels of a CTA: 4 per lane
constexpr int kMaxSplits = 64;                      // two per lane
constexpr int kLoads = kMaxSplits / kCombineWarps;  // splits of a warp, all in flight at once

// Warp w sums the splits w, w + 8, ... that hold keys; which ones do is known before they are there.
template <typename T>
__device__ __forceinline__ void combine(const float* acc, const float* m, const float* l, const int* length, T* out,
                                        int splits, int value_head_size, int capacity, int chunk, int live) {
  __shared__ float4 of_warp[kCombineWarps][kCombineTile / 4];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, channel = blockIdx.y * kCombineTile + 4 * lane;
  const int keys = live_length(length, capacity);
  const int used = min(splits, ceil_div(keys, keys_per_split(chunk, live, keys, splits)));
  const size_t first = static_cast<size_t>(blockIdx.x) * splits;
  acc += first * value_head_size + channel;
  pdl_wait();

  float4 x[kLoads];
#pragma unroll
  for (int n = 0; n < kLoads; ++n) {
    const int split = warp + n * kCombineWarps;
    x[n] = make_float4(0.f, 0.f, 0.f, 0.f);
    if (split < used && channel < value_head_size)
      x[n] = __ldcg(reinterpret_cast<const float4*>(acc + static_cast<size_t>(split) * value_head_size));
  }
  float of_split[2], max_of[2], weight[2];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const bool inside = lane + 32 * n < used;
    of_split[n] = inside ? __ldcg(l + first + lane + 32 * n) : 0.f;
    max_of[n] = inside ? __ldcg(m + first + lane + 32 * n) : minus_infinity();
  }
  const float max = lanes_max<31>(fmaxf(max_of[0], max_of[1]));
#pragma unroll
  for (int n = 0; n < 2; ++n) weight[n] = of_split[n] == 0.f ? 0.f : rescale_factor(max_of[n], max);
  const float sum = lanes_sum<31>(fmaf(weight[0], of_split[0], __fmul_rn(weight[1], of_split[1])));

  float4 total = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
  for (int n = 0; n < kLoads; ++n) {
    const float w = __shfl_sync(0xffffffffu, weight[n / 4], (warp + n * kCombineWarps) % 32);
    if (n == 0)  // not added to 0: a finished vector may hold -0
      total = make_float4(w * x[0].x, w * x[0].y, w * x[0].z, w * x[0].w);
    else
      total = make_float4(fmaf(w, x[n].x, total.x), fmaf(w, x[n].y, total.y), fmaf(w, x[n].z, total.z),
                          fmaf(w, x[n].w, total.w));
  }
  of_warp[warp][lane] = total;
  __syncthreads();  // the sums of all warps are published

  const int own = blockIdx.y * kCombineTile + threadIdx.x;
  if (threadIdx.x < kCombineTile && own < value_head_size) {
    float y = reinterpret_cast<const float*>(of_warp[0])[threadIdx.x];
    for (int w = 1; w < min(kCombineWarps, used); ++w) y += reinterpret_cast<const float*>(of_warp[w])[threadIdx.x];
    put(out + static_cast<size_t>(blockIdx.x) * value_head_size + own, mean(y, sum));
  }
}

}  // namespace fast

#define FAST_KERNELS(T, type)                                                                                      \
  KERNEL_FACT(fast_row_##type, threads, fast::kThreads);                                                           \
  KERNEL_FACT(fast_row_##type, smem_bytes, 0);                                                                     \
  KERNEL_FACT(fast_row_##type, max_head_size, fast::kMaxHeadSize);                                                 \
  KERNEL_FACT(fast_row_##type, max_value_head_size, fast::kMaxValueHeadSize);                                      \
  extern "C" __global__ void __launch_bounds__(fast::kThreads, fast::kResident)                                    \
      fast_row_##type(DENSE_INPUTS(T), T* __restrict__ out) {                                                      \
    fast::attend_row(DENSE_CALL(T), out);                                                                          \
  }                                                                                                                \
                                                                                                                   \
  KERNEL_FACT(fast_split_##type, threads, fast::kThreads);                                                         \
  KERNEL_FACT(fast_split_##type, smem_bytes, 0);                                                                   \
  KERNEL_FACT(fast_split_##type, max_head_size, fast::kMaxHeadSize);                                               \
  KERNEL_FACT(fast_split_##type, max_value_head_size, fast::kMaxValueHeadSize);                                    \
  extern "C" __global__ void __launch_bounds__(fast::kThreads, fast::kResident)                                    \
      fast_split_##type(DENSE_INPUTS(T), DENSE_PARTIALS) {                                                         \
    fast::attend_slice(DENSE_CALL(T), dense_partial(acc, m, l, value_head_size), chunk, live);                     \
  }                                                                                                                \
                                                                                                                   \
  KERNEL_FACT(fast_combine_##type, threads, fast::kCombineThreads);                                                \
  KERNEL_FACT(fast_combine_##type, smem_bytes, 0);                                                                 \
  KERNEL_FACT(fast_combine_##type, tile, fast::kCombineTile);                                                      \
  KERNEL_FACT(fast_combine_##type, max_splits, fast::kMaxSplits);                                                  \
  extern "C" __global__ void __launch_bounds__(fast::kCombineThreads)                                              \
      fast_combine_##type(const float* __restrict__ acc, const float* __restrict__ m, const float* __restrict__ l, \
                          const int* __restrict__ length, T* __restrict__ out, int splits, int value_head_size,    \
                          int capacity, int chunk, int live) {                                                     \
    fast::combine(acc, m, l, length, out, splits, value_head_size, capacity, chunk, live);                         \
  }

FAST_KERNELS(float, f32)
FAST_KERNELS(__half, f16)
FAST_KERNELS(__nv_bfloat16, bf16)
