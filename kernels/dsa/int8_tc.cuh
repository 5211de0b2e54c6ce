// SPDX-License-Identifier: MIT
// kernels/dsa/int8_tc.cuh - the body of the INT8 tensor-core attention kernels: one CTA attends the query heads of one
// row and KV head to a contiguous range of the row's tiles.
//
// Computes  for query head h of the group and the candidates c of the tiles (natural log):
//             x[c] = scale * dot(fp16(q[h,:] * key_scale[:]), k8[c,:]);  m = max x;  l = sum exp(x - m)
//             acc[d] = value_scale[d] * sum exp(x[c] - m) * v8[c,d]      (not divided by l)
// Warps     Scores: warp w owns candidates [16w, 16w + 16) of each tile, all heads. Output: warp w owns channels
//           [64w, 64w + 64), all heads. So the maxima and the probabilities cross shared memory, scores and acc do not.
// Numerics  Codes become FP16 exactly; products accumulate in FP32. The probability tile holds p * 2^15, so that FP16
//           stays normal down to p = 2^-29; with kSplitK as a high part plus a residual (22 bits), because a signed sum
//           of large codes can cancel far below the rounding of one FP16 probability. l sums the unscaled FP32 p.
//           acc is divided by 2^15 before value_scale is applied, which may be as small as 2^-135.
// Needs     sm_80+; head size 256; group <= 16; key, value and both scales 16-byte aligned; FP32 denormals kept.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/ptx.cuh"
#include "common/softmax.cuh"
#include "common/warp.cuh"
#include "dsa/cache.cuh"

namespace int8_tc {

constexpr int kThreads = 128;
constexpr int kHeadSize = 256;
constexpr int kTile = 64;      // candidates per step of the main loop
constexpr int kMaxGroup = 16;  // query heads, padded to the M dimension of the MMA
constexpr float kProbabilityScale = 32768.f;
template <bool kSplitK>
constexpr int kParts = kSplitK ? 2 : 1;  // FP16 numbers that hold one probability: decode adds the residual

// Rows of codes are 256 bytes without padding: 16-byte chunk c of row r lies at chunk c ^ (r % 8), so that the 8 rows
// of an ldmatrix cover all banks. The FP16 arrays get the same by 16 bytes of padding per row.
template <bool kSplitK>
struct alignas(256) Smem {
  Code key[2][kTile][kHeadSize];  // of this tile and of the next
  Code value[kTile][kHeadSize];
  float value_scale[kHeadSize];
  union {
    __half query[kMaxGroup][kHeadSize + 8];  // q * key_scale, until it is in registers
    __half probability[kParts<kSplitK>][kMaxGroup][kTile + 8];
  };
  int position[2][kTile];  // of this tile and of the next; -1: no candidate
  float of_warp[kThreads / 32][kMaxGroup];
};
static_assert(sizeof(Smem<true>) <= 75 * 1024, "3 CTAs per sm_90 SM: 228 KiB / 3, less 1 KiB reserved each");

// The part of the problem that one CTA sees.
struct Task {
  const __nv_bfloat16* query;  // [group, 256]
  const Code* key;             // [context, 256]
  const Code* value;           // [context, 256]
  const float* key_scale;      // [256]
  const float* value_scale;    // [256]
  const int* selected;         // [candidates]
  int context, candidates, group;
  int tile_begin, tile_end;
  float scale;
};

__device__ __forceinline__ unsigned half2_bits(__half2 x) { return reinterpret_cast<const unsigned&>(x); }

// Four codes as exact FP16: bytes 0 and 2 in `even`, 1 and 3 in `odd`. Flipping a code's sign bit adds 128, and a low
// byte of 0x64xx counts units of 1 above 1024.
__device__ __forceinline__ void codes_to_half(unsigned codes, unsigned& even, unsigned& odd) {
  const __half2 offset = __half2half2(__ushort_as_half(0x6480));  // 1024 + 128
  // (x & 0x00ff00ff) ^ 0x64806480 as one instruction: from C++ the compiler makes two, as it has two literals.
  unsigned e, o;
  asm("lop3.b32 %0, %1, 0x00ff00ff, 0x64806480, 0x6a;" : "=r"(e) : "r"(codes));
  asm("lop3.b32 %0, %1, 0x00ff00ff, 0x64806480, 0x6a;" : "=r"(o) : "r"(codes >> 8));
  even = half2_bits(__hsub2(reinterpret_cast<const __half2&>(e), offset));
  odd = half2_bits(__hsub2(reinterpret_cast<const __half2&>(o), offset));
}

// One CTA at work. Lane = 4 * g + t of the MMA fragments; a thread's rows are heads g and g + 8.
template <bool kSplitK>
class Attention {
 public:
  __device__ __forceinline__ Attention(const Task& task, Smem<kSplitK>& smem)
      : task_(task),
        smem_(smem),
        tid_(threadIdx.x),
        warp_(threadIdx.x / 32),
        lane_(threadIdx.x % 32),
        tiles_(task.tile_end - task.tile_begin) {}

  // Leaves m and l of the heads in every thread that holds a part of them, and acc spread over the CTA.
  __device__ __forceinline__ void run() {
    prologue();
    for (int i = 0; i < tiles_; ++i) step(i);
    reduce_sum();
  }

  // f(head, channel, acc[channel .. channel + 3]) for each four channels of each head of the group that this thread
  // owns. A head without a candidate gives zeros, whatever value_scale holds.
  template <typename F>
  __device__ __forceinline__ void for_each_acc(F f) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = lane_ / 4 + 8 * half;
      if (head >= task_.group) continue;
#pragma unroll
      for (int chunk = 0; chunk < 4; ++chunk) {
        const int channel = 64 * warp_ + 16 * chunk + 4 * (lane_ % 4);
        const float4 s = *reinterpret_cast<const float4*>(&smem_.value_scale[channel]);
        const float* even = &acc_[chunk][0][2 * half];
        const float* odd = &acc_[chunk][1][2 * half];
        const bool empty = sum_[half] == 0.f;
        f(head, channel,
          make_float4(empty ? 0.f : even[0] * (1.f / kProbabilityScale) * s.x,
                      empty ? 0.f : odd[0] * (1.f / kProbabilityScale) * s.y,
                      empty ? 0.f : even[1] * (1.f / kProbabilityScale) * s.z,
                      empty ? 0.f : odd[1] * (1.f / kProbabilityScale) * s.w));
      }
    }
  }

  // f(head, m, l) once per head of the group, each by one thread of the CTA.
  template <typename F>
  __device__ __forceinline__ void for_each_head(F f) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = lane_ / 4 + 8 * half;
      if (warp_ == 0 && lane_ % 4 == 0 && head < task_.group) f(head, max_[half], sum_[half]);
    }
  }

 private:
  // --- copies from global memory -----------------------------------------------------------------------------------

  __device__ __forceinline__ int load_tile_entry(int i, int slot) const {
    const int end = min(task_.candidates, task_.tile_end * kTile);
    return load_entry(task_.selected, (task_.tile_begin + i) * kTile + slot, end);
  }

  // This thread's part of the copy of a tile's cache rows: one 16-byte chunk of 8 successive rows. The copies are
  // issued a few at a time between other work: in one run they fill the queue of the load-store unit, and the warp
  // stands still for 480 cycles per tile. A row that is no candidate's is not copied: what its place holds are codes,
  // weighed with 0.
  class Copy {
   public:
    __device__ __forceinline__ Copy(const Code* head, Code (&rows)[kTile][kHeadSize], const int (&position)[kTile])
        : source_(head + 16 * (threadIdx.x % 16)), target_(shared_address(&rows[first()][16 * (threadIdx.x % 16)])) {
      *reinterpret_cast<int4*>(position_) = *reinterpret_cast<const int4*>(&position[first()]);
      *reinterpret_cast<int4*>(position_ + 4) = *reinterpret_cast<const int4*>(&position[first() + 4]);
      asm("" : "+l"(source_));  // one sum, or the compiler adds its uniform part to every row's address anew
    }

    __device__ __forceinline__ void row(int n) const {
      const int p = position_[n];
      cp_async_16((target_ ^ (16 * n)) + kHeadSize * n, cache_row(source_, p, kHeadSize), p);
    }

   private:
    __device__ __forceinline__ static int first() { return 8 * (threadIdx.x / 16); }
    const Code* source_;
    unsigned target_;
    int position_[8];
  };

  // --- before the first tile ---------------------------------------------------------------------------------------

  __device__ __forceinline__ void prologue() {
    // All that the first copies and the query wait for is requested before any of it is used.
    const int entry = load_tile_entry(tid_ / kTile, tid_ % kTile);  // of tiles 0 and 1
    uint4 q[4];  // warp w prepares heads w, w + 4, w + 8, w + 12; lane i their channels [8i, 8i + 8)
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int head = warp_ + 4 * n;
      q[n] = head < task_.group ? __ldg(reinterpret_cast<const uint4*>(task_.query + head * kHeadSize) + lane_)
                                : make_uint4(0, 0, 0, 0);
    }
    float key_scale[8];
    *reinterpret_cast<float4*>(key_scale) = __ldg(reinterpret_cast<const float4*>(task_.key_scale) + 2 * lane_);
    *reinterpret_cast<float4*>(key_scale + 4) = __ldg(reinterpret_cast<const float4*>(task_.key_scale) + 2 * lane_ + 1);
    if (tid_ < kHeadSize / 4)  // read after the last tile
      cp_async_16(shared_address(&smem_.value_scale[4 * tid_]), task_.value_scale + 4 * tid_);

    smem_.position[tid_ / kTile][tid_ % kTile] = candidate_or_none(entry, task_.context);
    __syncthreads();  // the positions of tiles 0 and 1 are published

    const Copy key(task_.key, smem_.key[0], smem_.position[0]);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      key.row(2 * n);
      key.row(2 * n + 1);
      fold_query(warp_ + 4 * n, q[n], key_scale);
    }
    cp_async_commit();
    __syncthreads();  // the folded query is published
    load_query_fragments();
  }

  // Q' = fp16(q * key_scale) of one head. Within 16 channels, in the order in which codes_to_half leaves the codes that
  // a thread t of a quad gets from ldmatrix (channels 4t .. 4t + 3): the MMA's k = 2t, 2t + 1 are channels 4t, 4t + 2
  // and k = 2t + 8, 2t + 9 are channels 4t + 1, 4t + 3.
  __device__ __forceinline__ void fold_query(int head, uint4 q, const float (&key_scale)[8]) {
    const unsigned pairs[4] = {q.x, q.y, q.z, q.w};
    float folded[8];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      folded[2 * n] = __uint_as_float(pairs[n] << 16) * key_scale[2 * n];  // BF16 is the upper half of FP32
      folded[2 * n + 1] = __uint_as_float(pairs[n] & 0xffff0000u) * key_scale[2 * n + 1];
    }
    __half* target = &smem_.query[head][16 * (lane_ / 2) + 4 * (lane_ % 2)];
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      const __half2 low = __floats2half2_rn(folded[odd], folded[2 + odd]);
      const __half2 high = __floats2half2_rn(folded[4 + odd], folded[6 + odd]);
      *reinterpret_cast<uint2*>(target + 8 * odd) = make_uint2(half2_bits(low), half2_bits(high));
    }
  }

  __device__ __forceinline__ void load_query_fragments() {
    const unsigned address = shared_address(&smem_.query[lane_ % 16][8 * (lane_ / 16)]);
#pragma unroll
    for (int k = 0; k < kHeadSize / 16; ++k) ldmatrix_x4(query_[k], address + k * 32);
  }

  // --- one tile ----------------------------------------------------------------------------------------------------

  // Copy groups in the order of their commits: K0 | V0 K1 | V1 K2 | ..., where | is the start of a step.
  __device__ __forceinline__ void step(int i) {
    const int ahead = tid_ < kTile ? load_tile_entry(i + 2, tid_) : -1;

    cp_async_wait<0>();  // my copies of K(i) have landed
    __syncthreads();  // everyone's have; and everyone is done with P(i-1) and V(i-1), and sees the positions of i + 1
    float x[2][4];
    scores(i, x);  // starts the copies of V(i) and K(i+1)
    publish_max(x);
    if constexpr (kSplitK) {
      // The merge then starts beside the second half of the last tile. Kernel and merge took 4.8 us with 1 row, 5.0
      // with the trigger at the end of the kernel; and 9.0 us with 8 rows, 9.3 with the trigger at its start.
      if (i + 1 == tiles_) pdl_launch_dependents();
    }
    __syncthreads();  // the maxima of the warps are published
    probabilities(x);
    cp_async_wait<1>();  // my copies of V(i) have landed; K(i+1) may be in flight
    __syncthreads();     // everyone's have, P(i) is published, and everyone is done with the positions of tile i,
    if (tid_ < kTile)
      smem_.position[i % 2][tid_] = candidate_or_none(ahead, task_.context);  // so those of i + 2 follow
    weighted_values();
  }

  // x[j][e]: head g + 8 * (e / 2), candidate 16w + 8j + 2t + e % 2 of the tile; -inf for no candidate.
  __device__ __forceinline__ void scores(int i, float (&x)[2][4]) {
    float sum[2][2][4] = {};  // even and odd steps of k apart: four chains of 8 MMAs hide more latency than two of 16
    const Copy value(task_.value, smem_.value, smem_.position[i % 2]);
    const Copy next_key(task_.key, smem_.key[(i + 1) % 2], smem_.position[(i + 1) % 2]);
    // ldmatrix: lanes 0-15 the 16 candidates at channels [0, 16), lanes 16-31 at [16, 32). The 32 bytes of a step are
    // an exclusive-or, because a row starts at a multiple of 256 bytes and the swizzle is one too.
    const int row = 16 * warp_ + lane_ % 16;
    const unsigned address = shared_address(&smem_.key[i % 2][row][16 * ((lane_ / 16) ^ (row % 8))]);
#pragma unroll
    for (int k = 0; k < kHeadSize / 32; ++k) {
      unsigned codes[4];
      ldmatrix_x4(codes, address ^ (32 * k));
      if (k % 2 == 0) {  // V's copies in the first half of the steps, K's in the second
        const Copy& copy = k < 4 ? value : next_key;
#pragma unroll
        for (int n = 0; n < 4; ++n) copy.row(2 * (k % 4) + n);
      }
      if (k % 4 == 3) cp_async_commit();
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        unsigned b0, b1;
        codes_to_half(codes[n], b0, b1);
        mma_m16n8k16(sum[n % 2][n / 2], query_[2 * k + n / 2], b0, b1);
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int2 p = *reinterpret_cast<const int2*>(&smem_.position[i % 2][16 * warp_ + 8 * j + 2 * (lane_ % 4)]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const bool valid = (e % 2 ? p.y : p.x) >= 0;
        x[j][e] = valid ? (sum[j][0][e] + sum[j][1][e]) * task_.scale : minus_infinity();
      }
    }
  }

  __device__ __forceinline__ void publish_max(const float (&x)[2][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float of_thread =
          fmaxf(fmaxf(x[0][2 * half], x[0][2 * half + 1]), fmaxf(x[1][2 * half], x[1][2 * half + 1]));
      const float of_warp = lanes_max<3>(of_thread);
      if (lane_ % 4 == 0) smem_.of_warp[warp_][lane_ / 4 + 8 * half] = of_warp;
    }
  }

  // Moves m to the maximum including this tile, rescales l and acc to it, adds to l and writes P.
  __device__ __forceinline__ void probabilities(const float (&x)[2][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = lane_ / 4 + 8 * half;
      float m = max_[half];
#pragma unroll
      for (int w = 0; w < kThreads / 32; ++w) m = fmaxf(m, smem_.of_warp[w][head]);
      const float rescale = rescale_factor(max_[half], m);
      const float reference = softmax_reference(m);
      max_[half] = m;
      sum_[half] *= rescale;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float p0 = exp_difference(x[j][2 * half], reference);
        const float p1 = exp_difference(x[j][2 * half + 1], reference);
        sum_[half] += p0 + p1;
        const float y0 = p0 * kProbabilityScale, y1 = p1 * kProbabilityScale;
        const __half2 high = __floats2half2_rn(y0, y1);
        const int candidate = 16 * warp_ + 8 * j + 2 * (lane_ % 4);
        *reinterpret_cast<__half2*>(&smem_.probability[0][head][candidate]) = high;
        if constexpr (kParts<kSplitK> == 2) {
          const float2 rounded = __half22float2(high);
          *reinterpret_cast<__half2*>(&smem_.probability[1][head][candidate]) =
              __floats2half2_rn(y0 - rounded.x, y1 - rounded.y);
        }
      }
#pragma unroll
      for (int chunk = 0; chunk < 4; ++chunk)
#pragma unroll
        for (int e = 0; e < 4; ++e) acc_[chunk][e / 2][2 * half + e % 2] *= rescale;
    }
  }

  // acc += P * V for this warp's 64 channels.
  __device__ __forceinline__ void weighted_values() {
    unsigned p_address[kParts<kSplitK>];
#pragma unroll
    for (int part = 0; part < kParts<kSplitK>; ++part)
      p_address[part] = shared_address(&smem_.probability[part][lane_ % 16][8 * (lane_ / 16)]);
    // ldmatrix transposes pairs of codes: a thread gets channels 2g and 2g + 1 of candidates 2t and 2t + 1, which
    // codes_to_half parts into the B fragments of an MMA over even and one over odd channels.
    const int row = lane_ % 16;
    const unsigned v_address = shared_address(&smem_.value[row][16 * ((4 * warp_ + lane_ / 16) ^ (row % 8))]);
#pragma unroll
    for (int k = 0; k < kTile / 16; ++k) {
      unsigned p[kParts<kSplitK>][4];
#pragma unroll
      for (int part = 0; part < kParts<kSplitK>; ++part) ldmatrix_x4(p[part], p_address[part] + 32 * k);
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        unsigned codes[4];
        ldmatrix_x4_trans(codes, (v_address ^ (32 * pair)) + 16 * kHeadSize * k);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          unsigned even[2], odd[2];
          codes_to_half(codes[2 * n], even[0], odd[0]);
          codes_to_half(codes[2 * n + 1], even[1], odd[1]);
#pragma unroll
          for (int part = 0; part < kParts<kSplitK>; ++part) {
            mma_m16n8k16(acc_[2 * pair + n][0], p[part], even[0], even[1]);
            mma_m16n8k16(acc_[2 * pair + n][1], p[part], odd[0], odd[1]);
          }
        }
      }
    }
  }

  // --- after the last tile -----------------------------------------------------------------------------------------

  __device__ __forceinline__ void reduce_sum() {
    cp_async_wait<0>();  // my copies of value_scale have landed, also without a tile

    // of_warp is free: its maxima were read before the last barrier of the last step.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float of_warp = lanes_sum<3>(sum_[half]);
      if (lane_ % 4 == 0) smem_.of_warp[warp_][lane_ / 4 + 8 * half] = of_warp;
    }
    __syncthreads();  // the sums of the warps and everyone's copies of value_scale are published
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum_[half] = 0.f;
#pragma unroll
      for (int w = 0; w < kThreads / 32; ++w) sum_[half] += smem_.of_warp[w][lane_ / 4 + 8 * half];
    }
  }

  const Task& task_;
  Smem<kSplitK>& smem_;
  const int tid_, warp_, lane_, tiles_;
  unsigned query_[kHeadSize / 16][4];                    // A fragments of Q'
  float max_[2] = {minus_infinity(), minus_infinity()};  // m of heads g, g + 8
  float sum_[2] = {};                                    // l of this thread's candidates; at the end of all
  float acc_[4][2][4] = {};  // [chunk of 16 channels][even, odd channels][C fragment], times 2^15
};

}  // namespace int8_tc
