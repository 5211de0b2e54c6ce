// SPDX-License-Identifier: MIT
// kernels/dsa/merge.cu - combines the partials that the splits of a decode kernel left, for any decode kernel.
//
// Computes  for row r and query head h, over the splits s with l > 0:
//             M = max m[s];   w[s] = exp(m[s] - M);   out[d] = bf16(sum w[s] * acc[s, d] / sum w[s] * l[s])   (RNE)
//           A partial with l == 0 contributes nothing, whatever its acc and m hold; without another one out is 0.
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

// Channels 4 * lane .. + 3 at `from`; those past `count` read as 0.
__device__ __forceinline__ float4 load_channels(const float* from, int count, bool vector) {
  if (vector) return count > 0 ? __ldcg(reinterpret_cast<const float4*>(from)) : make_float4(0.f, 0.f, 0.f, 0.f);
  return make_float4(count > 0 ? __ldcg(from) : 0.f, count > 1 ? __ldcg(from + 1) : 0.f,
                     count > 2 ? __ldcg(from + 2) : 0.f, count > 3 ? __ldcg(from + 3) : 0.f);
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
  __shared__ float4 of_warp[kWarps][kTile / 4];

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int channel = blockIdx.y * kTile + 4 * lane;
  const bool vector = head_size % 4 == 0 && reinterpret_cast<size_t>(acc) % 16 == 0;
  const size_t first = static_cast<size_t>(blockIdx.x) * splits;
  const float* vectors = acc + first * head_size + channel;

  pdl_wait();

  float max = minus_infinity(), sum = 0.f;  // the same in every thread
  float4 out4 = make_float4(0.f, 0.f, 0.f, 0.f);
  for (int chunk = 0; chunk < splits; chunk += kChunk) {
    float4 x[kLoads];  // requested before the weights are known: one latency, not two
#pragma unroll
    for (int n = 0; n < kLoads; ++n) {
      const int split = chunk + warp + n * kWarps;
      const int count = split < splits ? head_size - channel : 0;
      x[n] = load_channels(vectors + static_cast<size_t>(split) * head_size, count, vector);
    }
    const bool inside = chunk + lane < splits;
    const float l_lane = inside ? __ldcg(l + first + chunk + lane) : 0.f;
    const float m_read = inside ? __ldcg(m + first + chunk + lane) : minus_infinity();
    const float m_lane = l_lane == 0.f ? minus_infinity() : m_read;

    const float new_max = fmaxf(max, lanes_max<31>(m_lane));
    const float rescale = rescale_factor(max, new_max);
    const float weight_lane = l_lane == 0.f ? 0.f : rescale_factor(m_lane, new_max);
    max = new_max;
    sum = sum * rescale + lanes_sum<31>(weight_lane * l_lane);
    out4 = make_float4(out4.x * rescale, out4.y * rescale, out4.z * rescale, out4.w * rescale);
#pragma unroll
    for (int n = 0; n < kLoads; ++n) {
      const float weight = __shfl_sync(0xffffffffu, weight_lane, warp + n * kWarps);
      if (weight != 0.f)  // 0 * NaN would be NaN
        out4 = make_float4(out4.x + weight * x[n].x, out4.y + weight * x[n].y, out4.z + weight * x[n].z,
                           out4.w + weight * x[n].w);
    }
  }

  of_warp[warp][lane] = out4;
  __syncthreads();  // the sums of all warps are published
  const int own = blockIdx.y * kTile + threadIdx.x;
  if (threadIdx.x < kTile && own < head_size) {
    float x = 0.f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) x += reinterpret_cast<const float*>(of_warp[w])[threadIdx.x];
    out[static_cast<size_t>(blockIdx.x) * head_size + own] = __float2bfloat16_rn(sum == 0.f ? 0.f : x / sum);
  }
}
