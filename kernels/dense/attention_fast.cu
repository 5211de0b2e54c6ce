// SPDX-License-Identifier: MIT
// kernels/dense/attention_fast.cu - dense decode attention for the memory system: 16-byte loads of whole lines, several
// keys of a warp in flight, softmax online and per group of lanes. `fast` of dense decode.
//
// Computes  what dense/attention_row.cu does, in FP32, natural log, with other orders of summation:
//             x[j] = cap(sum_d (q[d] * scale) * k[j,d]) + mask[j];   m, l, acc online
//           A row that sees no key, or only keys masked by -inf, gives zeros.
//           fast_row_*    a row by one CTA.
//           fast_split_*  a row by several. If the keys that it sees fit one split, that makes the bits of fast_row.
//                         Else each leaves a partial (dense/partials.cuh), and the last to do so adds them up in the
//                         order of the splits.
//           The suffix is the type of query, key, value and out: f32, f16, bf16.
// Built for KEY_VECTORS = ceil(head_size / 64) and VALUE_VECTORS = ceil(value_head_size / 64), 1 to 4 each; without
//           these defines for the document's shape, head sizes 129 to 192 for keys and 65 to 128 for values.
// Grid      fast_row (rows). fast_split (rows, splits): CTA (r, s) owns slice s of row r, and exits at once if the row
//           sees no key of it.
// Block     128 threads. A group of lanes (8 for 2-byte elements, 16 for f32) holds one key's row in vectors of 16
//           bytes: lane i vectors i, i + lanes, ... A warp takes every 4th run of kKeys keys per group.
// Workspace fast_split: the partials, and arrived [rows], counters that are 0 before the first launch and after each.
//           Launches that may run at once need one each.
// Needs     head_size and value_head_size multiples of 16 bytes, at most fast_row_*_max_head_size and
//           _max_value_head_size; query, key and value 16-byte aligned; capacity < 2^30; splits <= 64 with splits *
//           chunk >= capacity, or live. Nobody writes `length` or pad_limit while a launch runs: CTAs that count
//           different numbers of splits would leave a counter that is not 0.
// Leaves    every element of out, the same bits in every launch. No CTA waits for another. `length` is read by every
//           CTA, so a captured launch follows it; the grid need not.
#include "common/barrier.cuh"
#include "common/fact.cuh"
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

constexpr int kAhead = 32;              // splits whose vectors are in flight at once: one per lane
constexpr int kMaxSplits = 2 * kAhead;  // two per lane

// What another CTA published, from L2; 0, and nothing is read, unless `wanted`. A predicate: under a condition the
// compiler computes each load's whole address anew, in 19 instructions instead of 4.
__device__ __forceinline__ float load_partial(const float* from, bool wanted) {
  float x;
  asm volatile(
      "{ .reg .pred p; setp.ne.s32 p, %2, 0;\n"
      "  mov.f32 %0, 0f00000000;\n"
      "  @p ld.global.cg.f32 %0, [%1]; }"
      : "=&f"(x)
      : "l"(from), "r"(static_cast<int>(wanted))
      : "memory");
  return x;
}

// A row's output from the partials of its splits, added in their order: the same bits whichever CTA came last.
template <typename T>
__device__ __forceinline__ void merge(const DensePartial& first, int splits, T* out, int value_head_size) {
  constexpr int kChannels = (kMaxValueHeadSize + kThreads - 1) / kThreads;  // of a thread
  const int lane = threadIdx.x % 32;
  float m[2], l[2], weight[2], part[kAhead][kChannels];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int split = lane + 32 * n;
    m[n] = load_partial(first.m + split, split < splits);
    l[n] = load_partial(first.l + split, split < splits);
  }
  const auto load_vectors = [&](int split) {
#pragma unroll
    for (int s = 0; s < kAhead; ++s)
#pragma unroll
      for (int n = 0; n < kChannels; ++n) {
        const int channel = threadIdx.x + n * kThreads;
        part[s][n] = load_partial(first.acc + (split + s) * value_head_size + channel,
                                  split + s < splits && channel < value_head_size);
      }
  };
  load_vectors(0);

#pragma unroll
  for (int n = 0; n < 2; ++n) m[n] = l[n] == 0.f ? minus_infinity() : m[n];
  const float max = lanes_max<31>(fmaxf(m[0], m[1]));
#pragma unroll
  for (int n = 0; n < 2; ++n) weight[n] = rescale_factor(m[n], max);
  const float sum = lanes_sum<31>(fmaf(weight[0], l[0], __fmul_rn(weight[1], l[1])));

  float acc[kChannels] = {};
  for (int split = 0; split < splits; split += kAhead) {
    if (split > 0) load_vectors(split);
    const float of_lane = split == 0 ? weight[0] : weight[1];
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      const float w = __shfl_sync(0xffffffffu, of_lane, s);
#pragma unroll
      for (int n = 0; n < kChannels; ++n) acc[n] = fmaf(w, part[s][n], acc[n]);
    }
  }
#pragma unroll
  for (int n = 0; n < kChannels; ++n)
    if (const int channel = threadIdx.x + n * kThreads; channel < value_head_size)
      put(out + channel, mean(acc[n], sum));
}

template <typename T>
__device__ __forceinline__ void attend_slice(const DenseCall<T>& call, const DensePartial& first, int chunk, int live,
                                             unsigned* arrived, T* out) {
  const int keys = live_length(call.length, call.capacity);
  chunk = keys_per_split(chunk, live, keys, gridDim.y);
  const DenseRow<T> row = dense_row(call, blockIdx.x, keys);
  const int split = blockIdx.y, begin = split * chunk;
  if (begin >= row.stop && split > 0) return;  // split 0 of a row that sees no key writes its zeros
  const bool whole = row.stop <= chunk;
  out += static_cast<size_t>(blockIdx.x) * call.value_head_size;
  float* own = first.acc + split * call.value_head_size;
  const float2 sums = attend_block(call, row, begin, min(begin + chunk, row.stop), [&](int c, float acc, float l) {
    if (whole)
      put(out + c, mean(acc, l));
    else
      own[c] = acc;
  });
  if (whole) return;
  if (threadIdx.x == 0) {
    first.m[split] = sums.x;
    first.l[split] = sums.y;
  }
  __syncthreads();  // the CTA's partial is written
  const unsigned others = ceil_div(row.stop, chunk) - 1;
  const bool last = threadIdx.x == 0 && increment_and_wrap(arrived + blockIdx.x, others) == others;
  if (!__syncthreads_or(last)) return;  // everyone knows, and sees what the other CTAs wrote
  merge(first, others + 1, out, call.value_head_size);
}

}  // namespace fast

#define FAST_KERNELS(T, type)                                                                                   \
  KERNEL_FACT(fast_row_##type, threads, fast::kThreads);                                                        \
  KERNEL_FACT(fast_row_##type, smem_bytes, 0);                                                                  \
  KERNEL_FACT(fast_row_##type, max_head_size, fast::kMaxHeadSize);                                              \
  KERNEL_FACT(fast_row_##type, max_value_head_size, fast::kMaxValueHeadSize);                                   \
  extern "C" __global__ void __launch_bounds__(fast::kThreads, fast::kResident)                                 \
      fast_row_##type(DENSE_INPUTS(T), T* __restrict__ out) {                                                   \
    fast::attend_row(DENSE_CALL(T), out);                                                                       \
  }                                                                                                             \
                                                                                                                \
  KERNEL_FACT(fast_split_##type, threads, fast::kThreads);                                                      \
  KERNEL_FACT(fast_split_##type, smem_bytes, 0);                                                                \
  KERNEL_FACT(fast_split_##type, max_head_size, fast::kMaxHeadSize);                                            \
  KERNEL_FACT(fast_split_##type, max_value_head_size, fast::kMaxValueHeadSize);                                 \
  KERNEL_FACT(fast_split_##type, max_splits, fast::kMaxSplits);                                                 \
  extern "C" __global__ void __launch_bounds__(fast::kThreads, fast::kResident)                                 \
      fast_split_##type(DENSE_INPUTS(T), DENSE_PARTIALS, unsigned* __restrict__ arrived, T* __restrict__ out) { \
    fast::attend_slice(DENSE_CALL(T), first_partial(acc, m, l, value_head_size), chunk, live, arrived, out);    \
  }

FAST_KERNELS(float, f32)
FAST_KERNELS(__half, f16)
FAST_KERNELS(__nv_bfloat16, bf16)
