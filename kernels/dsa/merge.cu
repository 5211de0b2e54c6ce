// SPDX-License-Identifier: MIT
// kernels/dsa/merge.cu - combines the partials that the splits of a decode kernel left, for any decode kernel.
//
// Computes  for row r and query head h, over the splits s with l > 0:
//             M = max m[s];   w[s] = exp(m[s] - M);   out[d] = bf16(sum w[s] * acc[s, d] / sum w[s] * l[s])   (RNE)
//           A partial with l == 0 contributes nothing, whatever its acc and m hold; without another one out is 0.
//           w * acc stays in range where w alone is not: with a value_scale of 2^60, a split that lies 100 nats below
//           the others still counts. So a w below 2^-120 is applied as two factors, down to 2^-246. NaN in l makes out
//           NaN; an acc that is infinite or NaN makes its channel so.
// Grid      (rows * query_heads, ceil(head_size / 128)). CTA (x, y) owns channels [128y, 128y + 128) of vector x.
// Block     128 threads. Warp w sums the splits w, w + 4, ...; its lane i the channels 4i .. 4i + 3 of the CTA.
// Needs     splits >= 1; any head size. acc is read 16 bytes at a time if it is 16-byte aligned and head_size % 4 == 0,
//           else element by element. FP32 denormals kept (a BF16 result may be subnormal).
// Leaves    every element of out written. Waits for the grid before it, so it may be launched programmatically early.
#include <cuda_bf16.h>

#include "common/fact.cuh"
#include "common/ptx.cuh"
#include "common/softmax.cuh"
#include "common/warp.cuh"

namespace merge {
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kTile = 128;               // channels of a CTA: 4 per lane
constexpr int kChunk = 32;               // splits per step: a lane holds the weight of one
constexpr int kLoads = kChunk / kWarps;  // splits of a warp per step, all in flight at once

constexpr float kFar = 120.f;  // a weight below 2^-kFar is kFarFactor times a second factor
constexpr float kFarFactor = 0x1p-120f;

// The splits of one vector, as one CTA sees them.
struct Splits {
  const float* acc;  // at this lane's channels; [splits, head_size]
  const float* m;    // [splits]
  const float* l;    // [splits]
  int splits, head_size, channel;
  bool vector;
};

struct Sums {
  float max = minus_infinity(), l = 0.f;  // the same in every thread
  float4 acc = {0.f, 0.f, 0.f, 0.f};      // of this warp's splits
};

__device__ __forceinline__ float4 scaled(float4 x, float factor) {
  return make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
}

// Channels 4 * lane .. + 3 at `from`; those past `count` read as 0.
__device__ __forceinline__ float4 load_channels(const float* from, int count, bool vector) {
  if (vector) return count > 0 ? __ldcg(reinterpret_cast<const float4*>(from)) : make_float4(0.f, 0.f, 0.f, 0.f);
  return make_float4(count > 0 ? __ldcg(from) : 0.f, count > 1 ? __ldcg(from + 1) : 0.f,
                     count > 2 ? __ldcg(from + 2) : 0.f, count > 3 ? __ldcg(from + 3) : 0.f);
}

// Adds the splits chunk .. chunk + 31 to the sums. Without kRare these must be empty, the loads are vectors, and if a
// weight needs two factors nothing is added and the result is false.
template <bool kRare>
__device__ __forceinline__ bool add_chunk(const Splits& of, int chunk, Sums& sums) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float4 x[kLoads];  // requested before the weights are known: one latency, not two
#pragma unroll
  for (int n = 0; n < kLoads; ++n) {
    const int split = chunk + warp + n * kWarps;
    const int count = split < of.splits ? of.head_size - of.channel : 0;
    x[n] = load_channels(of.acc + static_cast<size_t>(split) * of.head_size, count, !kRare || of.vector);
  }
  const bool inside = chunk + lane < of.splits;
  const float l = inside ? __ldcg(of.l + chunk + lane) : 0.f;
  const float m_read = inside ? __ldcg(of.m + chunk + lane) : minus_infinity();
  const float m = l == 0.f ? minus_infinity() : m_read;

  const float max = fmaxf(sums.max, lanes_max<31>(m));
  float weight = l == 0.f ? 0.f : rescale_factor(m, max), factor = 1.f;
  const float log2_weight = (m - max) * kLog2E;
  const bool far = l != 0.f && log2_weight < -kFar;
  if constexpr (kRare) {
    weight = far ? ex2(log2_weight + kFar) : weight;
    factor = far ? kFarFactor : 1.f;
    const float root = root_of_rescale_factor(sums.max, max);
    sums.l = sums.l * root * root;
    sums.acc = scaled(scaled(sums.acc, root), root);
  } else if (__any_sync(0xffffffffu, far)) {
    return false;
  }
  sums.max = max;
  sums.l += lanes_sum<31>(weight * factor * l);
#pragma unroll
  for (int n = 0; n < kLoads; ++n) {
    const float w = __shfl_sync(0xffffffffu, weight, warp + n * kWarps);
    if constexpr (kRare) x[n] = scaled(x[n], __shfl_sync(0xffffffffu, factor, warp + n * kWarps));
    if (w != 0.f)  // 0 * NaN would be NaN
      sums.acc = make_float4(sums.acc.x + w * x[n].x, sums.acc.y + w * x[n].y, sums.acc.z + w * x[n].z,
                             sums.acc.w + w * x[n].w);
  }
  return true;
}

// Adds the warps' sums and stores the CTA's channels of `out`, the vector.
__device__ __forceinline__ void store(const Splits& of, const Sums& sums, __nv_bfloat16* out) {
  __shared__ float4 of_warp[kWarps][kTile / 4];
  of_warp[threadIdx.x / 32][threadIdx.x % 32] = sums.acc;
  __syncthreads();  // the sums of all warps are published
  const int own = blockIdx.y * kTile + threadIdx.x;
  if (threadIdx.x < kTile && own < of.head_size) {
    float x = 0.f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) x += reinterpret_cast<const float*>(of_warp[w])[threadIdx.x];
    out[own] = __float2bfloat16_rn(sums.l == 0.f ? 0.f : x / sums.l);
  }
}

}  // namespace merge

KERNEL_FACT(merge_partials, threads, merge::kThreads);
KERNEL_FACT(merge_partials, smem_bytes, 0);
KERNEL_FACT(merge_partials, tile, merge::kTile);

extern "C" __global__ void __launch_bounds__(merge::kThreads)
    merge_partials(const float* __restrict__ acc,    // [rows, query_heads, splits, head_size]
                   const float* __restrict__ m,      // [rows, query_heads, splits]
                   const float* __restrict__ l,      // [rows, query_heads, splits]
                   __nv_bfloat16* __restrict__ out,  // [rows, query_heads, head_size]
                   int splits, int head_size) {
  using namespace merge;
  const int channel = blockIdx.y * kTile + 4 * (threadIdx.x % 32);
  const bool vector = head_size % 4 == 0 && reinterpret_cast<size_t>(acc) % 16 == 0;
  const size_t first = static_cast<size_t>(blockIdx.x) * splits;
  const Splits of = {acc + first * head_size + channel, m + first, l + first, splits, head_size, channel, vector};
  out += static_cast<size_t>(blockIdx.x) * head_size;

  pdl_wait();

  Sums sums;
  if (__builtin_expect(!vector || splits > kChunk || !add_chunk<false>(of, 0, sums), false)) {
    // After the common code and with an end of its own, so that the common code has no jump (see README.md).
    for (int chunk = 0; chunk < splits; chunk += kChunk) add_chunk<true>(of, chunk, sums);
    store(of, sums, out);
    return;
  }
  store(of, sums, out);
}
