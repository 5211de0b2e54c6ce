// SPDX-License-Identifier: MIT
// kernels/dsa/prefill_bf16.cu - attention of many query rows over their gathered INT8 candidates, dequantised to BF16:
// `previous` of prefill, and what prefill falls back to.
//
// Computes  for row r, query head h of KV head g and the candidates c of the row's list (natural log):
//             k[c] = bf16(key_scale[g,:] * k8[g,c,:]),  v[c] likewise;  x[c] = scale * dot(q[r,h,:], k[c]);  m = max x
//             out[r,h,d] = sum bf16(exp(x[c] - m)) * v[c,d] / sum exp(x[c] - m), rounded to BF16; 0 without a candidate
// Grid      (rows, kv_heads). CTA (r, g) owns query heads [g * group, (g + 1) * group) and all tiles of the row's list.
// Block     128 threads, prefill_bf16_smem_bytes of dynamic shared memory. Scores: warp w owns candidates
//           [16w, 16w + 16) of each tile, all heads. Output: warp w owns channels [64w, 64w + 64), all heads.
// Numerics  Products of BF16 numbers are summed in FP32 on the tensor cores. Dequantising and the probabilities cost
//           2^-9 each; sums are as large as they come, so a code times its scale, a score or acc beyond FP32's range is
//           infinite and the output infinite or NaN.
// Needs     sm_80+; head size 256; 1 <= group <= 16. Every pointer aligned to its element; where key or value is not
//           16-byte aligned, bytes are loaded one by one.
//           An entry of `selected` outside [0, context) is no candidate, wherever it stands; duplicates count twice.
// Leaves    every element of out written.
#include <cuda_bf16.h>

#include "common/fact.cuh"
#include "common/ptx.cuh"
#include "common/softmax.cuh"
#include "common/warp.cuh"
#include "dsa/cache.cuh"

namespace bf16_prefill {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kHeadSize = 256;
constexpr int kTile = 64;
constexpr int kMaxGroup = 16;  // query heads, padded to the M dimension of the MMA
constexpr int kChunk = 16;     // channels that one thread copies of a row
constexpr int kLanes = kHeadSize / kChunk;
constexpr int kRows = kTile / (kThreads / kLanes);  // rows of a tile to which one thread contributes
constexpr int kPitch = kHeadSize + 8;               // 16 bytes of padding: the 8 rows of an ldmatrix cover all banks

struct alignas(16) Smem {
  Code key[kTile][kHeadSize], value[kTile][kHeadSize];  // as copied
  __nv_bfloat16 tile[kTile][kPitch];                    // query, then K, then V of a tile, dequantised
  __nv_bfloat16 probability[kMaxGroup][kTile + 8];
  float key_scale[kHeadSize], value_scale[kHeadSize];
  int position[2][kTile];  // of this tile and of the next; -1: no candidate
  float of_warp[kWarps][kMaxGroup];
};
static_assert(sizeof(Smem) <= 75 * 1024, "3 CTAs per sm_90 SM: 228 KiB / 3, less 1 KiB reserved each");

__device__ __forceinline__ unsigned bf16x2_bits(float x, float y) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
  return reinterpret_cast<const unsigned&>(pair);
}

// Code `byte` of a word as FP32, which is exact: code + 128 in the low byte of 0x4b0000xx counts units of 1 above 2^23.
__device__ __forceinline__ float code_to_float(unsigned biased_codes, unsigned byte) {
  return __uint_as_float(__byte_perm(biased_codes, 0x4b000000u, 0x7540 + byte)) - (8388608.f + 128.f);
}

// A row that is no candidate's is not copied: what its place holds are codes all the same.
template <bool kAligned>
__device__ __forceinline__ void copy_tile(const Code* head, Code (&rows)[kTile][kHeadSize],
                                          const int (&position)[kTile]) {
  const int chunk = kChunk * (threadIdx.x % kLanes);
#pragma unroll
  for (int n = 0; n < kRows; ++n) {
    const int row = threadIdx.x / kLanes + n * (kThreads / kLanes), p = position[row];
    const Code* source = cache_row(head, p, kHeadSize) + chunk;
    Code* target = &rows[row][chunk];
    if constexpr (kAligned) {
      cp_async_16(shared_address(target), source, p);
    } else {
      if (p < 0) continue;
#pragma unroll
      for (int c = 0; c < kChunk; ++c) target[c] = __ldg(source + c);
    }
  }
  cp_async_commit();
}

// codes * scale as BF16; with kZero, zeros for a row that is no candidate's, as 0 times what an infinite scale makes of
// it would be NaN. A warp takes whole rows, 8 channels per lane, so that its stores cover all banks.
template <bool kZero>
__device__ __forceinline__ void dequantise(const Code (&codes)[kTile][kHeadSize], const float (&scale)[kHeadSize],
                                           const int (&position)[kTile], __nv_bfloat16 (&target)[kTile][kPitch]) {
  const int channel = 8 * (threadIdx.x % 32);
  float s[8];
#pragma unroll
  for (int n = 0; n < 2; ++n)
    *reinterpret_cast<float4*>(s + 4 * n) = *reinterpret_cast<const float4*>(&scale[channel + 4 * n]);
#pragma unroll
  for (int row = threadIdx.x / 32; row < kTile; row += kWarps) {
    const uint2 loaded = *reinterpret_cast<const uint2*>(&codes[row][channel]);
    const unsigned biased[2] = {loaded.x ^ 0x80808080u, loaded.y ^ 0x80808080u};
    unsigned pairs[4];
#pragma unroll
    for (int n = 0; n < 4; ++n)
      pairs[n] = bf16x2_bits(code_to_float(biased[n / 2], n % 2 * 2) * s[2 * n],
                             code_to_float(biased[n / 2], n % 2 * 2 + 1) * s[2 * n + 1]);
    const bool keep = !kZero || position[row] >= 0;
    *reinterpret_cast<uint4*>(&target[row][channel]) =
        keep ? make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]) : make_uint4(0, 0, 0, 0);
  }
}

struct Task {
  const __nv_bfloat16* query;  // [group, 256]
  const Code* key;             // [context, 256]
  const Code* value;           // [context, 256]
  const float* key_scale;      // [256]
  const float* value_scale;    // [256]
  const int* selected;         // [candidates]
  __nv_bfloat16* out;          // [group, 256]
  int context, candidates, group;
  float scale;
};

// Lane = 4 * g + t of the MMA fragments; a thread's rows are heads g and g + 8.
template <bool kAligned>
__device__ __forceinline__ void attend(const Task& task, Smem& smem) {
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
  const int tiles = (task.candidates + kTile - 1) / kTile;

  smem.position[tid / kTile][tid % kTile] =
      candidate_or_none(load_entry(task.selected, tid, task.candidates), task.context);
  for (int i = tid; i < kMaxGroup * kHeadSize; i += kThreads)
    smem.tile[i / kHeadSize][i % kHeadSize] = i / kHeadSize < task.group ? task.query[i] : __float2bfloat16_rn(0.f);
  for (int i = tid; i < kHeadSize; i += kThreads) {
    smem.key_scale[i] = __ldg(task.key_scale + i);
    smem.value_scale[i] = __ldg(task.value_scale + i);
  }
  __syncthreads();  // positions of tiles 0 and 1, query and scales are published
  copy_tile<kAligned>(task.key, smem.key, smem.position[0]);
  copy_tile<kAligned>(task.value, smem.value, smem.position[0]);
  unsigned query[kHeadSize / 16][4];  // A fragments
#pragma unroll
  for (int k = 0; k < kHeadSize / 16; ++k)
    ldmatrix_x4(query[k], shared_address(&smem.tile[lane % 16][16 * k + 8 * (lane / 16)]));

  float acc[8][4] = {};  // [8 channels][C fragment]
  float max[2] = {minus_infinity(), minus_infinity()}, sum[2] = {};
  // Copy groups in the order of their commits: K0 V0 | K1 V1 | ..., where | is the start of a step.
  for (int i = 0; i < tiles; ++i) {
    const int ahead = tid < kTile ? load_entry(task.selected, (i + 2) * kTile + tid, task.candidates) : -1;
    const int (&position)[kTile] = smem.position[i % 2];
    const int (&next_position)[kTile] = smem.position[(i + 1) % 2];

    cp_async_wait<1>();  // my copies of K(i) have landed
    // Everyone's have; and everyone is done with the query or V(i-1) in `tile`. A tile without a candidate, as early
    // rows of a prompt have them, gets no more than what the steps to come need.
    if (!__syncthreads_or(position[tid % kTile] >= 0)) {
      copy_tile<kAligned>(task.key, smem.key, next_position);
      copy_tile<kAligned>(task.value, smem.value, next_position);
      if (tid < kTile) smem.position[i % 2][tid] = candidate_or_none(ahead, task.context);
      continue;
    }
    dequantise<false>(smem.key, smem.key_scale, position, smem.tile);
    __syncthreads();  // K(i) is dequantised, its copy may be replaced
    copy_tile<kAligned>(task.key, smem.key, next_position);

    float x[2][4] = {};  // [8 candidates][C fragment]: candidate 16w + 8j + 2t + e % 2
#pragma unroll
    for (int k = 0; k < kHeadSize / 16; ++k) {
      unsigned b[4];
      ldmatrix_x4(b, shared_address(&smem.tile[16 * warp + lane % 8 + 8 * (lane / 16)][16 * k + 8 * (lane / 8 % 2)]));
      mma_bf16_m16n8k16(x[0], query[k], b[0], b[1]);
      mma_bf16_m16n8k16(x[1], query[k], b[2], b[3]);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int2 p = *reinterpret_cast<const int2*>(&position[16 * warp + 8 * j + 2 * (lane % 4)]);
#pragma unroll
      for (int e = 0; e < 4; ++e) x[j][e] = (e % 2 ? p.y : p.x) >= 0 ? x[j][e] * task.scale : minus_infinity();
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float of_warp =
          lanes_max<3>(fmaxf(fmaxf(x[0][2 * half], x[0][2 * half + 1]), fmaxf(x[1][2 * half], x[1][2 * half + 1])));
      if (lane % 4 == 0) smem.of_warp[warp][lane / 4 + 8 * half] = of_warp;
    }
    cp_async_wait<1>();  // my copies of V(i) have landed; K(i+1) may be in flight
    __syncthreads();     // everyone's have, the maxima are published, and everyone is done with K(i) in `tile`

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = lane / 4 + 8 * half;
      float m = max[half];
#pragma unroll
      for (int w = 0; w < kWarps; ++w) m = fmaxf(m, smem.of_warp[w][head]);
      const float rescale = rescale_factor(max[half], m), reference = softmax_reference(m);
      max[half] = m;
      sum[half] *= rescale;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float p0 = exp_difference(x[j][2 * half], reference), p1 = exp_difference(x[j][2 * half + 1], reference);
        sum[half] += p0 + p1;
        *reinterpret_cast<unsigned*>(&smem.probability[head][16 * warp + 8 * j + 2 * (lane % 4)]) = bf16x2_bits(p0, p1);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) acc[j][e] *= rescale;
    }
    dequantise<true>(smem.value, smem.value_scale, position, smem.tile);
    __syncthreads();  // P(i) and V(i) are published; the copy of V(i) and the positions of tile i may be replaced
    copy_tile<kAligned>(task.value, smem.value, next_position);
    if (tid < kTile) smem.position[i % 2][tid] = candidate_or_none(ahead, task.context);

#pragma unroll
    for (int k = 0; k < kTile / 16; ++k) {
      unsigned p[4];
      ldmatrix_x4(p, shared_address(&smem.probability[lane % 16][16 * k + 8 * (lane / 16)]));
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        unsigned v[4];
        ldmatrix_x4_trans(v, shared_address(&smem.tile[16 * k + lane % 16][64 * warp + 16 * j + 8 * (lane / 16)]));
        mma_bf16_m16n8k16(acc[2 * j], p, v[0], v[1]);
        mma_bf16_m16n8k16(acc[2 * j + 1], p, v[2], v[3]);
      }
    }
  }

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float of_warp = lanes_sum<3>(sum[half]);
    if (lane % 4 == 0) smem.of_warp[warp][lane / 4 + 8 * half] = of_warp;  // its maxima were read before a barrier
  }
  __syncthreads();  // the sums of the warps are published
  const bool pairs = reinterpret_cast<size_t>(task.out) % 4 == 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int head = lane / 4 + 8 * half;
    if (head >= task.group) continue;
    float l = 0.f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) l += smem.of_warp[w][head];
    const float inverse = l == 0.f ? 0.f : __frcp_rn(l);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      __nv_bfloat16* out = task.out + head * kHeadSize + 64 * warp + 8 * j + 2 * (lane % 4);
      const __nv_bfloat162 pair = __floats2bfloat162_rn(acc[j][2 * half] * inverse, acc[j][2 * half + 1] * inverse);
      if (pairs) {
        *reinterpret_cast<__nv_bfloat162*>(out) = pair;
      } else {
        out[0] = pair.x;
        out[1] = pair.y;
      }
    }
  }
}

}  // namespace bf16_prefill

KERNEL_FACT(prefill_bf16, threads, bf16_prefill::kThreads);
KERNEL_FACT(prefill_bf16, smem_bytes, sizeof(bf16_prefill::Smem));
KERNEL_FACT(prefill_bf16, tile, bf16_prefill::kTile);
KERNEL_FACT(prefill_bf16, max_group, bf16_prefill::kMaxGroup);
KERNEL_FACT(prefill_bf16, head_size, bf16_prefill::kHeadSize);

extern "C" __global__ void __launch_bounds__(bf16_prefill::kThreads,
                                             3)            // 3: what registers and shared memory allow on sm_90
    prefill_bf16(const __nv_bfloat16* __restrict__ query,  // [rows, query_heads, 256]
                 const Code* __restrict__ key,             // [kv_heads, context, 256]
                 const Code* __restrict__ value,           // [kv_heads, context, 256]
                 const float* __restrict__ key_scale,      // [kv_heads, 256]
                 const float* __restrict__ value_scale,    // [kv_heads, 256]
                 const int* __restrict__ selected,         // [rows, candidates]
                 __nv_bfloat16* __restrict__ out,          // [rows, query_heads, 256]
                 int context, int candidates, int group, float scale) {
  using namespace bf16_prefill;
  extern __shared__ __align__(alignof(Smem)) unsigned char smem_bytes[];
  Smem& smem = *reinterpret_cast<Smem*>(smem_bytes);

  const unsigned row = blockIdx.x, kv_head = blockIdx.y;
  const size_t first_head = (static_cast<size_t>(row) * gridDim.y + kv_head) * group;
  const size_t cache_offset = static_cast<size_t>(kv_head) * context * kHeadSize;
  const Task task = {query + first_head * kHeadSize,
                     key + cache_offset,
                     value + cache_offset,
                     key_scale + kv_head * kHeadSize,
                     value_scale + kv_head * kHeadSize,
                     selected + static_cast<size_t>(row) * candidates,
                     out + first_head * kHeadSize,
                     context,
                     candidates,
                     group,
                     scale};
  if ((reinterpret_cast<size_t>(key) | reinterpret_cast<size_t>(value)) % 16 == 0)
    attend<true>(task, smem);
  else
    attend<false>(task, smem);
}
