// SPDX-License-Identifier: MIT
// kernels/dsa/decode_grouped.cu - split-KV attention of query rows over their gathered INT8 candidates on CUDA cores.
// The query heads of a KV head share the gathered rows. It takes every shape and buffer that the others refuse.
//
// Computes  for row r, query head h of KV head g, split s, over the candidates c that s owns, in FP32 (natural log):
//             x[c] = scale * dot(q[r,h,:] * key_scale[g,:], k8[g,c,:]);   m = max x;   l = sum exp(x - m)
//             acc[d] = value_scale[g,d] * sum exp(x[c] - m) * v8[g,c,d]   (not divided by l)
// Grid      (rows, kv_heads * parts, splits), parts = ceil(group / 8), splits >= 1. CTA (r, g * parts + j, s) owns the
//           query heads [group * j / parts, group * (j + 1) / parts) of KV head g and the list's entries
//           [candidates * s / splits, candidates * (s + 1) / splits).
// Block     256 threads, decode_grouped_smem_bytes of dynamic shared memory. Warp w takes every 8th batch of 4
//           candidates; its lane i the channels [8i, 8i + 8) of all heads, and in the softmax one (head, candidate).
// Needs     1 <= group; 1 <= head_size <= 256; buffers aligned to their elements. Rows of the cache are read 8 bytes at
//           a time and the query 16 where pointers and head_size allow it, else element by element.
//           An entry of `selected` outside [0, context) is no candidate, wherever it stands; duplicates count twice.
// Leaves    every (r, h, s) of acc, m and l written; a split without a candidate gives 0, -inf and 0, never NaN.
//           A score of -inf counts as none, so a head with no other is zeros; products that overflow FP32 give inf or
//           NaN.
//           Lets a dependent launch start before the end; the dependent waits for the whole grid before it reads.
#include <cuda_bf16.h>

#include "common/fact.cuh"
#include "common/ptx.cuh"
#include "common/softmax.cuh"
#include "common/warp.cuh"
#include "dsa/cache.cuh"

namespace grouped {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kHeads = 8;          // query heads of a CTA
constexpr int kBatch = 4;          // candidates of a warp per step: 8 x 4 scores, one per lane
constexpr int kChannels = 8;       // channels of a lane
constexpr int kMaxHeadSize = 256;  // 32 lanes x 8
static_assert(kHeads * kBatch == 32 && kChannels * 32 == kMaxHeadSize,
              "a warp covers the scores and the channels once");

struct Smem {
  float probability[kWarps][kHeads][kBatch];
  float max[kWarps][kHeads], sum[kWarps][kHeads];
  float4 acc[kWarps][kHeads][32];  // half of each lane's channels at a time: 16-byte stores hit all banks
};
static_assert(sizeof(Smem) <= 64 * 1024, "what a block of the oldest device, SM 7.5, may have");

// Four codes as FP32, exactly: a sign-flipped code is code + 128, and the low byte of 0x4b0000xx counts units of 1
// above 2^23. The conversion instruction has a quarter of the rate of the two that this takes.
__device__ __forceinline__ void codes_to_float(unsigned codes, float* x) {
  const unsigned shifted = codes ^ 0x80808080u;
#pragma unroll
  for (int n = 0; n < 4; ++n)
    x[n] = __uint_as_float(__byte_perm(shifted, 0x4b000000u, 0x7440 + n)) - (8388608.f + 128.f);
}

// The 8 codes of a lane's channels of one candidate's row; channels past the head's and rows of no candidate are 0.
template <bool kVector>
__device__ __forceinline__ uint2 load_codes(const Code* head, int position, int channel, int head_size) {
  uint2 codes = make_uint2(0, 0);
  const Code* from = cache_row(head, position, head_size) + channel;
  const int count = position < 0 ? 0 : head_size - channel;
  if constexpr (kVector) {
    if (count > 0) codes = __ldg(reinterpret_cast<const uint2*>(from));
  } else {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (n < count) codes.x |= static_cast<unsigned char>(__ldg(from + n)) << (8 * n);
      if (n + 4 < count) codes.y |= static_cast<unsigned char>(__ldg(from + n + 4)) << (8 * n);
    }
  }
  return codes;
}

// The sums over the warp of x[0 .. 2 * kBit - 1], sum i in the lanes whose lower bits are i: for 32 sums 31 exchanges
// instead of 160. A lane keeps the half of the sums that its bit names and gives the other half away.
template <int kBit = 16>
__device__ __forceinline__ float transpose_sum(float (&x)[32], int lane) {
#pragma unroll
  for (int n = 0; n < kBit; ++n) {
    const float low = x[n], high = x[n + kBit];
    const float keep = lane & kBit ? high : low, give = lane & kBit ? low : high;
    x[n] = keep + __shfl_xor_sync(0xffffffffu, give, kBit);
  }
  if constexpr (kBit > 1) return transpose_sum<kBit / 2>(x, lane);
  return x[0];
}

struct Task {
  const __nv_bfloat16* query;  // [heads, head_size]
  const Code* key;             // [context, head_size]
  const Code* value;           // [context, head_size]
  const float* key_scale;      // [head_size]
  const int* selected;         // [candidates]
  int context, heads, head_size;
  int begin, end;  // entries of the list
  float scale;
};

// q * key_scale of a lane's channels; absent heads and channels are 0.
__device__ __forceinline__ void load_query(const Task& task, int channel, float (&q)[kHeads][kChannels]) {
  float key_scale[kChannels];
#pragma unroll
  for (int n = 0; n < kChannels; ++n)
    key_scale[n] = channel + n < task.head_size ? __ldg(task.key_scale + channel + n) : 0.f;
  const bool vector = reinterpret_cast<size_t>(task.query) % 16 == 0 && task.head_size % 8 == 0;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const int count = h < task.heads ? task.head_size - channel : 0;
    const __nv_bfloat16* from = task.query + h * task.head_size + channel;
    if (vector) {
      const uint4 x = count > 0 ? __ldg(reinterpret_cast<const uint4*>(from)) : make_uint4(0, 0, 0, 0);
      const unsigned pairs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int n = 0; n < 4; ++n) {  // BF16 is the upper half of FP32
        q[h][2 * n] = __uint_as_float(pairs[n] << 16) * key_scale[2 * n];
        q[h][2 * n + 1] = __uint_as_float(pairs[n] & 0xffff0000u) * key_scale[2 * n + 1];
      }
    } else {
#pragma unroll
      for (int n = 0; n < kChannels; ++n) q[h][n] = n < count ? __bfloat162float(from[n]) * key_scale[n] : 0.f;
    }
  }
}

// One warp's share of the CTA's candidates. Leaves acc and, in lanes 4h .. 4h + 3 for head h, m and a part of l each.
template <bool kVector>
__device__ __forceinline__ void attend(const Task& task, const float (&q)[kHeads][kChannels], Smem& smem, float& max,
                                       float& sum, float (&acc)[kHeads][kChannels]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, channel = kChannels * lane;
  constexpr int kStride = kBatch * kWarps;

  const auto load_entries = [&](int first, int (&entry)[kBatch]) {
#pragma unroll
    for (int c = 0; c < kBatch; ++c) entry[c] = load_entry(task.selected, first + c, task.end);
  };
  const auto load_rows = [&](const Code* head, const int (&position)[kBatch], uint2(&codes)[kBatch]) {
#pragma unroll
    for (int c = 0; c < kBatch; ++c) codes[c] = load_codes<kVector>(head, position[c], channel, task.head_size);
  };
  const auto check = [&](const int (&entry)[kBatch], int (&position)[kBatch]) {
#pragma unroll
    for (int c = 0; c < kBatch; ++c) position[c] = candidate_or_none(entry[c], task.context);
  };

  // In flight at once: V of this batch, K of the next and the entries of the one after.
  int entry[kBatch], position[kBatch];
  uint2 key[kBatch];
  const int begin = task.begin + kBatch * warp;
  load_entries(begin, entry);
  check(entry, position);
  load_rows(task.key, position, key);
  load_entries(begin + kStride, entry);

  for (int first = begin; first < task.end; first += kStride) {
    uint2 value[kBatch], next_key[kBatch];
    load_rows(task.value, position, value);
    int next[kBatch];
    check(entry, next);
    load_rows(task.key, next, next_key);
    load_entries(first + 2 * kStride, entry);

    float x[32];  // [head][candidate]
    {
      float k[kBatch][kChannels];
#pragma unroll
      for (int c = 0; c < kBatch; ++c) {
        codes_to_float(key[c].x, k[c]);
        codes_to_float(key[c].y, k[c] + 4);
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int c = 0; c < kBatch; ++c) x[kBatch * h + c] = 0.f;
        if (h < task.heads) {
#pragma unroll
          for (int n = 0; n < kChannels; ++n)
#pragma unroll
            for (int c = 0; c < kBatch; ++c) x[kBatch * h + c] = fmaf(q[h][n], k[c][n], x[kBatch * h + c]);
        }
      }
    }
    // From here on this lane is candidate lane % 4 of head lane / 4.
    const int own = lane % 2 ? (lane & 2 ? position[3] : position[1]) : (lane & 2 ? position[2] : position[0]);
    const float logit = transpose_sum(x, lane) * task.scale;
    const float own_x = own < 0 ? minus_infinity() : logit;
    const float new_max = fmaxf(max, lanes_max<3>(own_x));
    if (__any_sync(0xffffffffu, new_max != max)) {
      const float rescale = rescale_factor(max, new_max);
      sum *= rescale;
      max = new_max;
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const float of_head = __shfl_sync(0xffffffffu, rescale, kBatch * h);
#pragma unroll
        for (int n = 0; n < kChannels; ++n) acc[h][n] *= of_head;
      }
    }
    const float p = exp_difference(own_x, softmax_reference(max));
    sum += p;
    __syncwarp();  // every lane has read the previous batch's probabilities
    smem.probability[warp][lane / kBatch][lane % kBatch] = p;
    __syncwarp();  // this batch's are published

    float v[kBatch][kChannels];
#pragma unroll
    for (int c = 0; c < kBatch; ++c) {
      codes_to_float(value[c].x, v[c]);
      codes_to_float(value[c].y, v[c] + 4);
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h < task.heads) {
        const float4 weight = *reinterpret_cast<const float4*>(smem.probability[warp][h]);
#pragma unroll
        for (int n = 0; n < kChannels; ++n) {
          acc[h][n] = fmaf(weight.x, v[0][n], acc[h][n]);
          acc[h][n] = fmaf(weight.y, v[1][n], acc[h][n]);
          acc[h][n] = fmaf(weight.z, v[2][n], acc[h][n]);
          acc[h][n] = fmaf(weight.w, v[3][n], acc[h][n]);
        }
      }
    }
#pragma unroll
    for (int c = 0; c < kBatch; ++c) {
      key[c] = next_key[c];
      position[c] = next[c];
    }
  }
}

}  // namespace grouped

KERNEL_FACT(decode_grouped, threads, grouped::kThreads);
KERNEL_FACT(decode_grouped, smem_bytes, sizeof(grouped::Smem));
KERNEL_FACT(decode_grouped, heads_per_cta, grouped::kHeads);
KERNEL_FACT(decode_grouped, max_head_size, grouped::kMaxHeadSize);

extern "C" __global__ void __launch_bounds__(grouped::kThreads, 1)
    decode_grouped(const __nv_bfloat16* __restrict__ query,  // [rows, query_heads, head_size]
                   const Code* __restrict__ key,             // [kv_heads, context, head_size]
                   const Code* __restrict__ value,           // [kv_heads, context, head_size]
                   const float* __restrict__ key_scale,      // [kv_heads, head_size]
                   const float* __restrict__ value_scale,    // [kv_heads, head_size]
                   const int* __restrict__ selected,         // [rows, candidates]
                   float* __restrict__ acc,                  // [rows, query_heads, splits, head_size]
                   float* __restrict__ m,                    // [rows, query_heads, splits]
                   float* __restrict__ l,                    // [rows, query_heads, splits]
                   int context, int candidates, int group, int head_size, float scale) {
  using namespace grouped;
  extern __shared__ __align__(16) unsigned char smem_bytes[];
  Smem& smem = *reinterpret_cast<Smem*>(smem_bytes);

  const unsigned row = blockIdx.x, split = blockIdx.z, splits = gridDim.z;
  const unsigned parts = (group + kHeads - 1) / kHeads;
  const unsigned kv_head = blockIdx.y / parts, part = blockIdx.y % parts, kv_heads = gridDim.y / parts;
  const int head_begin = range_begin(group, part, parts);
  const unsigned first_head = (row * kv_heads + kv_head) * group + head_begin;  // of rows * query_heads < 2^31
  const size_t cache_offset = static_cast<size_t>(kv_head) * context * head_size;
  const Task task = {query + static_cast<size_t>(first_head) * head_size,
                     key + cache_offset,
                     value + cache_offset,
                     key_scale + kv_head * head_size,
                     selected + static_cast<size_t>(row) * candidates,
                     context,
                     range_begin(group, part + 1, parts) - head_begin,
                     head_size,
                     range_begin(candidates, split, splits),
                     range_begin(candidates, split + 1, splits),
                     scale};
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  float q[kHeads][kChannels], of_warp[kHeads][kChannels] = {};
  float max = minus_infinity(), sum = 0.f;
  load_query(task, kChannels * lane, q);
  const size_t alignment = reinterpret_cast<size_t>(key) | reinterpret_cast<size_t>(value) | head_size;
  if (alignment % 8 == 0)
    attend<true>(task, q, smem, max, sum, of_warp);
  else
    attend<false>(task, q, smem, max, sum, of_warp);
  pdl_launch_dependents();  // not before: this CTA's registers leave no room for another on its SM

  // The warps' partials become the CTA's: relative to the common maximum, then added channel by channel.
  sum = lanes_sum<3>(sum);
  if (lane % kBatch == 0) {
    smem.max[warp][lane / kBatch] = max;
    smem.sum[warp][lane / kBatch] = sum;
  }
  __syncthreads();  // the maxima and sums of all warps are published

#pragma unroll
  for (int half = 0; half < kChannels / 4; ++half) {
    if (half > 0) __syncthreads();  // everyone has added the vectors of the half before
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float cta_max = minus_infinity();
#pragma unroll
      for (int w = 0; w < kWarps; ++w) cta_max = fmaxf(cta_max, smem.max[w][h]);
      const float rescale = rescale_factor(smem.max[warp][h], cta_max);
      const float* x = of_warp[h] + 4 * half;
      smem.acc[warp][h][lane] = make_float4(x[0] * rescale, x[1] * rescale, x[2] * rescale, x[3] * rescale);
    }
    __syncthreads();  // the vectors of this half are published

    // Threads 0-127 add the even heads' vectors, the others the odd ones'; thread i word i % 128 of each, which is
    // channel 8 * lane + 4 * half + word of the lane that wrote it.
    const int own = threadIdx.x % 128;
    const int channel = kChannels * (own / 4) + 4 * half + own % 4;
    const float channel_scale = channel < head_size ? __ldg(value_scale + kv_head * head_size + channel) : 0.f;
    for (int h = threadIdx.x / 128; h < task.heads; h += kThreads / 128) {
      float cta_max = minus_infinity(), cta_sum = 0.f, x = 0.f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) cta_max = fmaxf(cta_max, smem.max[w][h]);
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        cta_sum += smem.sum[w][h] * rescale_factor(smem.max[w][h], cta_max);
        x += reinterpret_cast<const float*>(smem.acc[w][h])[own];
      }
      const size_t partial = static_cast<size_t>(first_head + h) * splits + split;
      if (channel < head_size) acc[partial * head_size + channel] = cta_sum == 0.f ? 0.f : x * channel_scale;
      if (half == 0 && own == 0) {
        m[partial] = cta_max;
        l[partial] = cta_sum;
      }
    }
  }
}
