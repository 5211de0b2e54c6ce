// SPDX-License-Identifier: MIT
// kernels/dsa/int8_tc.cuh - the body of the INT8 tensor-core attention kernels: one CTA attends the query heads of one
// row and KV head to a contiguous range of the row's tiles.
//
// Computes  for query head h of the group and the candidates c of the tiles (natural log):
//             x[c] = scale * dot(q[h,:] * key_scale[:], k8[c,:]);  m = max x;  l = sum exp(x - m)
//             acc[d] = value_scale[d] * sum exp(x[c] - m) * v8[c,d]      (not divided by l)
// Warps     Scores: warp w owns candidates [16w, 16w + 16) of each tile, all heads. Output: warp w owns channels
//           [64w, 64w + 64), all heads. So the maxima and the probabilities cross shared memory, scores and acc do not.
// Paths     Each CTA takes one, decided from the inputs before it rounds anything, so that nothing is clipped. Between
//           two tiles it may go on from 1 to 2: what it summed before keeps the errors of 1.
//           0 half    q * key_scale as one FP16 number Q'; probabilities as below. Needs, for each head,
//                     0.52 * scale * sum_d |Q'| <= 1, which keeps eps = 128 * scale * sum_d |q * key_scale - Q'| within
//                     0.125 (typically 0.05), and for each channel |value_scale| <= 2^16 (so finite inputs).
//           1 digits  q * key_scale as four INT8 digits (int8_query.cuh), probabilities as below. Needs
//                     |value_scale| <= 2^100 and, if one is above 2^16, no tail: a candidate more than 20 nats below
//                     the running maximum of its tile, or a maximum that rises by more than 60 nats after the first
//                     tile with a candidate. A tail shows late: the CTA then goes on with that tile on path 2.
//           2 single  scores as in 1, probabilities in FP32 times 2^100, values multiplied in FP32 on the CUDA cores.
//           All splits of a row and KV head see the same query and scales, so only the tail lets their paths differ;
//           the scores of 1 and 2 are the same numbers.
// Numerics  Codes become FP16 exactly. Errors, x in nats; u = 2^-24:
//             0  |dx| <= eps + the FP32 sum of the products on the tensor cores (they truncate: 2u per addition)
//             1, 2  |dx| <= 2^-14.98 * scale * max |q * key_scale| + 3u * (|x| + scale * max |q * key_scale|): the sums
//                of digits are exact integers, so a common part of the scores costs no more than its FP32 rounding.
//             0, 1  p is off by 2^-22 p + 2^-40, because the probability tile holds p * 2^15, so that FP16 stays normal
//                down to p = 2^-29; with kSplitK as a high part plus a residual (22 bits), because a signed sum of
//                large codes can cancel far below the rounding of one FP16 probability (else 2^-11 p + 2^-40).
//             2  p is off by 2^-22 p, down to p = 2^-226 (156 nats), below that by 2^-249.
//           l sums the unrounded FP32 p. acc is divided by 2^15 or 2^100 before value_scale is applied where that is
//           small (2^-135, say), after it where it is large.
// Range     |acc| < 2^128 for up to 2^20 candidates: on path 2 with a |value_scale| above 2^100, acc and l of all
//           splits are 2^-27 of what they are above; the merge divides one by the other.
// Not finite  Without a candidate: 0. A head with q or key_scale infinite or NaN in any channel: l and acc NaN, m -inf,
//           the other heads as ever. (Exact arithmetic gives scores of NaN and +-inf, so a softmax of NaN.) A
//           value_scale infinite or NaN: acc = value_scale * the finite sum, in that channel alone: so NaN for NaN, and
//           for +-inf an infinity of the right sign if the sum is not 0, else NaN. Finite inputs give no NaN.
// Needs     sm_80+; head size 256; group <= 16; 0 <= scale <= 1; key, value and both scales 16-byte aligned; FP32
//           denormals kept.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/ptx.cuh"
#include "common/softmax.cuh"
#include "common/warp.cuh"
#include "dsa/cache.cuh"
#include "dsa/int8_query.cuh"

namespace int8_tc {

constexpr int kThreads = 128;
constexpr int kHeadSize = 256;
constexpr int kTile = 64;                     // candidates per step of the main loop
constexpr int kMaxGroup = 16;                 // query heads, padded to the M dimension of the MMA
constexpr float kProbabilityScale = 32768.f;  // of the FP16 tile

enum Path : int { kHalf, kDigitsPath, kSingle, kPaths };  // see above
constexpr int kAutomatic = -1;
constexpr float kQueryBudget = 0.125f;               // nats
constexpr float kTailScale = 65536.f, kTail = 20.f;  // path 1: |value_scale| from which it matters, nats
constexpr float kMaxRise = 60.f;                     // nats; with kTail the FP32 acc spans 2^15 .. 2^-101
constexpr float kMaxScale = 1.2676506002282294e30f;  // 2^100
constexpr float kWide = kMaxScale;                   // of FP32 probabilities
constexpr float kWideExponent = 100.f;
// Of the 16 A fragments of Q', path 0 holds so many in registers: with one more it would spill.
template <bool kSplitK>
constexpr int kHeld = kSplitK ? 13 : 12;
template <bool kSplitK>
constexpr int kParts = kSplitK ? 2 : 1;  // FP16 numbers that hold one probability: decode adds the residual

// Rows of codes are 256 bytes without padding: 16-byte chunk c of row r lies at chunk c ^ (r % 8), so that the 8 rows
// of an ldmatrix cover all banks. The other arrays get the same by 16 bytes of padding per row.
template <bool kSplitK>
struct alignas(256) Smem {
  Code key[2][kTile][kHeadSize];  // of this tile and of the next
  Code value[kTile][kHeadSize];
  float value_scale[kHeadSize];
  union {
    __half query[kMaxGroup][kHeadSize + 8];          // path 0: Q', until it is in registers
    Code digit[kDigits][kMaxGroup][kHeadSize + 16];  // 1, 2: the most significant first
  };
  union {
    __half probability[kParts<kSplitK>][kMaxGroup][kTile + 8];  // paths 0, 1
    float wide_probability[kTile][kMaxGroup + 4];               // 2
  };
  int position[2][kTile];  // of this tile and of the next; -1: no candidate
  float of_warp[kThreads / 32][kMaxGroup];
  float unit[kMaxGroup];     // paths 1, 2: nats per unit of a head's score
  float rescale[kMaxGroup];  // path 2: square root of what a tile's new maximum does to acc
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

  // Attends and gives the result to open_sink(): sink.put_head(head, m, l) once per head of the group,
  // sink.put_acc(head, channel, acc[channel ..], l) with four floats (path 2: two) until each channel of each head came
  // once, sink.put_path(path) in each thread. `forced` takes a path whatever the inputs need.
  template <typename F>
  __device__ __forceinline__ void run(int forced, F open_sink) {
    const bool half = prologue();
    if (__builtin_expect(forced == kAutomatic ? !half : forced != kHalf, false)) {
      run_digits(forced, open_sink);
      return;  // so that the code of path 0 follows at once: builds with a jump to it took 0.2 us longer with 1 row
    }
    pass<kHalf>(0);
    publish<kHalf>(open_sink());
  }

 private:
  // Path 1 or 2, after the prologue.
  template <typename F>
  __device__ __forceinline__ void run_digits(int forced, F open_sink) {
    const bool too_large = digits_prologue();
    int tile = 0;
    if (forced == kAutomatic ? !too_large : forced == kDigitsPath) {
      watch_tail_ = watch_tail_ && forced == kAutomatic;
      tile = pass<kDigitsPath>(0);
      if (tile == tiles_) {
        publish<kDigitsPath>(open_sink());
        return;
      }
      widen();
    }
    pass<kSingle>(tile);
    publish<kSingle>(open_sink());
  }

  // A CTA without a candidate gives zeros, whatever value_scale holds.
  template <Path kPath, typename Sink>
  __device__ __forceinline__ void publish(const Sink& sink) const {
    const bool empty = sum_[0] == 0.f;  // for all heads alike
    if constexpr (kPath == kSingle) {
      const float2 s = *reinterpret_cast<const float2*>(&smem_.value_scale[2 * tid_]);
#pragma unroll
      for (int head = 0; head < kMaxGroup; ++head) {
        const float* x = wide_acc_[head];
        if (head < task_.group)
          sink.put_acc(head, 2 * tid_,
                       make_float2(empty ? 0.f : unscaled(x[0], s.x), empty ? 0.f : unscaled(x[1], s.y)),
                       sum_of_warps(head) * unwide_);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = lane_ / 4 + 8 * half;
      if (head >= task_.group) continue;
      if (warp_ == 0 && lane_ % 4 == 0) sink.put_head(head, max_[half], sum_[half]);
      if constexpr (kPath != kSingle) {
#pragma unroll
        for (int chunk = 0; chunk < 4; ++chunk) {
          const int channel = 64 * warp_ + 16 * chunk + 4 * (lane_ % 4);
          const float4 s = *reinterpret_cast<const float4*>(&smem_.value_scale[channel]);
          const float* even = &acc_[chunk][0][2 * half];
          const float* odd = &acc_[chunk][1][2 * half];
          sink.put_acc(head, channel,
                       make_float4(empty ? 0.f : even[0] * (1.f / kProbabilityScale) * s.x,
                                   empty ? 0.f : odd[0] * (1.f / kProbabilityScale) * s.y,
                                   empty ? 0.f : even[1] * (1.f / kProbabilityScale) * s.z,
                                   empty ? 0.f : odd[1] * (1.f / kProbabilityScale) * s.w),
                       sum_[half]);
        }
      }
    }
    sink.put_path(kPath);
  }

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
      asm("" : "+l"(source_));           // one sum, or the compiler adds its uniform part to every row's address anew
      asm volatile("" : "+r"(target_));  // not 8 addresses, held in registers through the loop
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

  // Leaves Q' in registers, and K(0) in shared memory, seen by everyone. Whether path 0 may be taken.
  __device__ __forceinline__ bool prologue() {
    uint4 q[4];
    float key_scale[8];
    // All that the first copies and the query wait for is requested before any of it is used.
    const int entry = load_tile_entry(tid_ / kTile, tid_ % kTile);  // of tiles 0 and 1
#pragma unroll
    for (int n = 0; n < 4; ++n) q[n] = load_query(warp_ + 4 * n);
    load_key_scale(key_scale);
    const float2 value_scale = __ldg(reinterpret_cast<const float2*>(task_.value_scale) + tid_);
    if (tid_ < kHeadSize / 4)  // read after the last tile
      cp_async_16(shared_address(&smem_.value_scale[4 * tid_]), task_.value_scale + 4 * tid_);

    smem_.position[tid_ / kTile][tid_ % kTile] = candidate_or_none(entry, task_.context);
    __syncthreads();  // the positions of tiles 0 and 1 are published

    const Copy key(task_.key, smem_.key[0], smem_.position[0]);
    __half2 magnitude[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      key.row(2 * n);
      key.row(2 * n + 1);
      magnitude[n] =
          fold_half(Channels(q[n], key_scale), &smem_.query[warp_ + 4 * n][16 * (lane_ / 2) + 4 * (lane_ % 2)]);
    }
    cp_async_commit();

    __syncthreads();  // Q' is published
#pragma unroll
    for (int step = 0; step < kHeld<kSplitK>; ++step) load_query_fragment(step, query_[step]);

    // While K is on its way.
    bool exceeds = !(fabsf(value_scale.x) <= kTailScale && fabsf(value_scale.y) <= kTailScale);  // so NaN counts
#pragma unroll
    for (int n = 0; n < 4; ++n) exceeds |= !rounds_within(magnitude[n], task_.scale, kQueryBudget);
    cp_async_wait<0>();                 // my copies of K(0) and value_scale have landed
    return !__syncthreads_or(exceeds);  // everyone's have
  }

  // Warp w prepares heads w, w + 4, w + 8, w + 12; lane i their channels [8i, 8i + 8).
  __device__ __forceinline__ uint4 load_query(int head) const {
    return head < task_.group ? __ldg(reinterpret_cast<const uint4*>(task_.query + head * kHeadSize) + lane_)
                              : make_uint4(0, 0, 0, 0);
  }

  __device__ __forceinline__ void load_key_scale(float (&key_scale)[8]) const {
    const float4* scales = reinterpret_cast<const float4*>(task_.key_scale) + 2 * lane_;
    *reinterpret_cast<float4*>(key_scale) = __ldg(scales);
    *reinterpret_cast<float4*>(key_scale + 4) = __ldg(scales + 1);
  }

  // For paths 1 and 2, after the prologue: the digits over Q', which nobody reads. Whether a value_scale is too large
  // for path 1.
  __device__ __forceinline__ bool digits_prologue() {
    forget_addresses();
    float key_scale[8];
    load_key_scale(key_scale);
    // Not unrolled: fetching four copies of the code took longer than the loop does.
#pragma unroll 1
    for (int head = warp_; head < kMaxGroup; head += kThreads / 32) {
      float unit = 0.f;  // of an absent head, whatever its digits are
      if (head < task_.group) {
        Channels channels(load_query(head), key_scale);
        const DigitScale of_head = digit_scale(channels, task_.scale);
        fold_digits(channels, of_head.factor, &smem_.digit[0][head][8 * lane_], sizeof(smem_.digit[0]));
        unit = of_head.unit;
      }
      if (lane_ == 0) smem_.unit[head] = unit;
    }
    bool far = false, too_large = false;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float x = fabsf(smem_.value_scale[32 * n + lane_]);
      far |= !(x <= kTailScale);
      too_large |= !(x <= kMaxScale);
    }
    watch_tail_ = __any_sync(0xffffffffu, far);
    too_large = __any_sync(0xffffffffu, too_large);
    unwide_ = too_large ? power_of_two(-27) / kWide : 1.f / kWide;
    __syncthreads();  // the digits and units are published
#pragma unroll
    for (int half = 0; half < 2; ++half) unit_[half] = smem_.unit[lane_ / 4 + 8 * half];
    return too_large;
  }

  // From path 1 to path 2, before the probabilities of a tile: acc through the place of V, which is copied anew.
  __device__ __forceinline__ void widen() {
    cp_async_wait<0>();
    __syncthreads();  // everyone's copies of V have landed, so none can overwrite acc in its place
    float (*staged)[kHeadSize] = reinterpret_cast<float (*)[kHeadSize]>(smem_.value);
    static_assert(sizeof(smem_.value) == sizeof(float[kMaxGroup][kHeadSize]));
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int chunk = 0; chunk < 4; ++chunk) {
        const float* even = &acc_[chunk][0][2 * half];
        const float* odd = &acc_[chunk][1][2 * half];
        *reinterpret_cast<float4*>(&staged[lane_ / 4 + 8 * half][64 * warp_ + 16 * chunk + 4 * (lane_ % 4)]) =
            make_float4(even[0], odd[0], even[1], odd[1]);
      }
    __syncthreads();  // acc is staged
#pragma unroll
    for (int head = 0; head < kMaxGroup; ++head) {
      const float2 x = *reinterpret_cast<const float2*>(&staged[head][2 * tid_]);
      wide_acc_[head][0] = x.x * (kWide / kProbabilityScale);
      wide_acc_[head][1] = x.y * (kWide / kProbabilityScale);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) sum_[half] *= kWide;
    __syncthreads();  // everyone is done with the place of V
  }

  __device__ __forceinline__ void load_query_fragment(int step, unsigned (&a)[4]) const {
    ldmatrix_x4(a, shared_address(&smem_.query[lane_ % 16][8 * (lane_ / 16)]) + 32 * step);
  }

  // --- one path ---------------------------------------------------------------------------------------------------

  __device__ __forceinline__ void forget_addresses() {
    tid_ = thread_index();
    warp_ = tid_ / 32;
    lane_ = tid_ % 32;
  }

  // The tiles from `first` on. Returns tiles_; on path 1 the tile that has a tail, if one has: it is not yet added.
  template <Path kPath>
  __device__ __forceinline__ int pass(int first) {
    if constexpr (kPath != kHalf) forget_addresses();
    for (int i = first; i < tiles_; ++i)
      if (!step<kPath>(i)) return i;
    reduce_sum();
    if constexpr (kPath == kSingle) {
#pragma unroll
      for (int half = 0; half < 2; ++half) sum_[half] *= unwide_;
    }
    return tiles_;
  }

  // --- one tile ----------------------------------------------------------------------------------------------------

  // Copy groups in the order of their commits: K0 | V0 K1 | V1 K2 | ..., where | is the start of a step. False if path
  // 1 must be left before this tile; acc, l and m are then those of the tiles before.
  template <Path kPath>
  __device__ __forceinline__ bool step(int i) {
    const int ahead = tid_ < kTile ? load_tile_entry(i + 2, tid_) : -1;

    if (i > 0) {
      cp_async_wait<0>();  // my copies of K(i) have landed
      // Everyone's have; and everyone is done with P(i-1) and V(i-1), and sees the positions of i + 1.
      if constexpr (kSplitK) {
        __syncthreads();
      } else if (!__syncthreads_or(smem_.position[i % 2][tid_ % kTile] >= 0)) {
        skip(i, ahead);
        return true;
      }
    }
    float x[2][4];
    scores<kPath>(i, x);  // starts the copies of V(i) and K(i+1)
    publish_max(x);
    if constexpr (kSplitK) {
      // The merge then starts beside the second half of the last tile. Kernel and merge took 4.8 us with 1 row, 5.0
      // with the trigger at the end of the kernel; and 9.0 us with 8 rows, 9.3 with the trigger at its start.
      if (i + 1 == tiles_) pdl_launch_dependents();
    }
    __syncthreads();  // the maxima of the warps are published
    // Path 2 then starts this tile anew. Its scores copy V(i) and K(i+1) once more, over themselves: the positions of
    // tile i are replaced only below.
    if constexpr (kPath == kDigitsPath)
      if (watch_tail_ && __syncthreads_or(meets_tail(x))) return false;
    if constexpr (kPath == kSingle)
      wide_probabilities(x);
    else
      probabilities<kPath>(x);
    cp_async_wait<1>();  // my copies of V(i) have landed; K(i+1) may be in flight
    __syncthreads();     // everyone's have, P(i) is published, and everyone is done with the positions of tile i,
    if (tid_ < kTile)
      smem_.position[i % 2][tid_] = candidate_or_none(ahead, task_.context);  // so those of i + 2 follow
    if constexpr (kPath == kSingle)
      wide_weighted_values();
    else
      weighted_values();
    return true;
  }

  // A tile without a candidate, as early rows of a prompt have them: only what the steps to come need.
  __device__ __forceinline__ void skip(int i, int ahead) {
    const Copy next_key(task_.key, smem_.key[(i + 1) % 2], smem_.position[(i + 1) % 2]);
#pragma unroll
    for (int n = 0; n < 8; ++n) next_key.row(n);
    cp_async_commit();
    if (tid_ < kTile) smem_.position[i % 2][tid_] = candidate_or_none(ahead, task_.context);
  }

  // x[j][e]: head g + 8 * (e / 2), candidate 16w + 8j + 2t + e % 2 of the tile; -inf for no candidate.
  template <Path kPath>
  __device__ __forceinline__ void scores(int i, float (&x)[2][4]) {
    // Path 0: even and odd steps of k apart: four chains of 8 MMAs hide more latency than two of 16.
    float sum[2][2][4] = {};
    int of_digit[kDigits][2][4] = {};
    // ldmatrix: lanes 0-15 the 16 candidates at channels [0, 16), lanes 16-31 at [16, 32). The 32 bytes of a step are
    // an exclusive-or, because a row starts at a multiple of 256 bytes and the swizzle is one too.
    const int row = 16 * warp_ + lane_ % 16;
    const unsigned address = shared_address(&smem_.key[i % 2][row][16 * ((lane_ / 16) ^ (row % 8))]);
    const unsigned digits = shared_address(&smem_.digit[0][lane_ % 16][16 * (lane_ / 16)]);
    const auto multiply = [&](int k, const Copy& copy) {
      unsigned codes[4];
      ldmatrix_x4(codes, address ^ (32 * k));
      if (k % 2 == 0) {
#pragma unroll
        for (int n = 0; n < 4; ++n) copy.row(2 * (k % 4) + n);
      }
      if (k % 4 == 3) cp_async_commit();
      if constexpr (kPath == kHalf) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          unsigned a[4];
          if (2 * k + n >= kHeld<kSplitK>) load_query_fragment(2 * k + n, a);
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            unsigned b0, b1;
            codes_to_half(codes[2 * n + j], b0, b1);
            mma_m16n8k16(sum[j][n], 2 * k + n < kHeld<kSplitK> ? query_[2 * k + n] : a, b0, b1);
          }
        }
      } else {
#pragma unroll
        for (int d = 0; d < kDigits; ++d) {
          unsigned a[4];
          ldmatrix_x4(a, digits + static_cast<unsigned>(sizeof(smem_.digit[0])) * d + 32 * k);
#pragma unroll
          for (int j = 0; j < 2; ++j) mma_m16n8k32(of_digit[d][j], a, codes[j], codes[j + 2]);
        }
      }
    };
    {
      const Copy value(task_.value, smem_.value, smem_.position[i % 2]);
#pragma unroll
      for (int k = 0; k < kHeadSize / 64; ++k) multiply(k, value);
    }
    {
      const Copy next_key(task_.key, smem_.key[(i + 1) % 2], smem_.position[(i + 1) % 2]);
#pragma unroll
      for (int k = kHeadSize / 64; k < kHeadSize / 32; ++k) multiply(k, next_key);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int2 p = *reinterpret_cast<const int2*>(&smem_.position[i % 2][16 * warp_ + 8 * j + 2 * (lane_ % 4)]);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float score;
        if constexpr (kPath == kHalf)
          score = (sum[j][0][e] + sum[j][1][e]) * task_.scale;
        else
          score =
              combine_digits(of_digit[0][j][e], of_digit[1][j][e], of_digit[2][j][e], of_digit[3][j][e]) * unit_[e / 2];
        x[j][e] = (e % 2 ? p.y : p.x) >= 0 ? score : minus_infinity();
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
  template <Path kPath>
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

  // Whether this thread's candidates of a tile are too deep for path 1, or its heads' maxima rose too far.
  __device__ __forceinline__ bool meets_tail(const float (&x)[2][4]) {
    bool tail = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float m = max_[half];
#pragma unroll
      for (int w = 0; w < kThreads / 32; ++w) m = fmaxf(m, smem_.of_warp[w][lane_ / 4 + 8 * half]);
      first_max_[half] = max_[half] == minus_infinity() ? m : first_max_[half];
      tail |= m - first_max_[half] > kMaxRise;
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) tail |= m - x[j][e] > kTail && x[j][e] > minus_infinity();
    }
    return tail;
  }

  // Path 2: as above, with P in FP32 times 2^100, and the rescaling of acc left to its owners.
  __device__ __forceinline__ void wide_probabilities(const float (&x)[2][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = lane_ / 4 + 8 * half;
      float m = max_[half];
#pragma unroll
      for (int w = 0; w < kThreads / 32; ++w) m = fmaxf(m, smem_.of_warp[w][head]);
      const float root = root_of_rescale_factor(max_[half], m);
      if (warp_ == 0 && lane_ % 4 == 0) smem_.rescale[head] = root;
      const float reference = softmax_reference(m);
      max_[half] = m;
      sum_[half] = sum_[half] * root * root;
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float t = (x[j][2 * half + e] - reference) * kLog2E;
          const bool near = t >= -kWideExponent;  // false for NaN: a minimum or maximum would drop it
          const float p = ex2_subnormal(near ? t : t + kWideExponent) * (near ? kWide : 1.f);
          sum_[half] += p;
          smem_.wide_probability[16 * warp_ + 8 * j + 2 * (lane_ % 4) + e][head] = p;
        }
    }
  }

  // Path 2: acc += P * V for this thread's two channels and all heads.
  __device__ __forceinline__ void wide_weighted_values() {
#pragma unroll
    for (int head = 0; head < kMaxGroup; ++head) {
      const float root = smem_.rescale[head];
#pragma unroll
      for (int n = 0; n < 2; ++n) wide_acc_[head][n] = wide_acc_[head][n] * root * root;
    }
    const Code* column = &smem_.value[0][2 * (tid_ % 8)];
    unsigned codes[8];
    const auto load_codes = [&](int first) {
#pragma unroll
      for (int n = 0; n < 8; ++n)  // the swizzle, as `first` is a multiple of 8
        codes[n] = *reinterpret_cast<const unsigned short*>(column + (first + n) * kHeadSize + 16 * ((tid_ / 8) ^ n));
    };
    load_codes(0);
#pragma unroll 1
    for (int first = 0; first < kTile; first += 8) {
      float v[8][2];
#pragma unroll
      for (int n = 0; n < 8; ++n) {  // code + 128 in the low byte of 0x4b0000xx counts units of 1 above 2^23
        v[n][0] = __uint_as_float(__byte_perm(codes[n] ^ 0x8080u, 0x4b000000u, 0x7540)) - (8388608.f + 128.f);
        v[n][1] = __uint_as_float(__byte_perm(codes[n] ^ 0x8080u, 0x4b000000u, 0x7541)) - (8388608.f + 128.f);
      }
      load_codes((first + 8) % kTile);
#pragma unroll
      for (int heads = 0; heads < kMaxGroup; heads += 4) {
        if (heads >= task_.group) break;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          const float4 p = *reinterpret_cast<const float4*>(&smem_.wide_probability[first + n][heads]);
          const float of_head[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
          for (int h = 0; h < 4; ++h)
#pragma unroll
            for (int c = 0; c < 2; ++c) wide_acc_[heads + h][c] = fmaf(of_head[h], v[n][c], wide_acc_[heads + h][c]);
        }
      }
    }
  }

  // acc of path 2, times value_scale, without an intermediate result that is out of range although acc is not.
  __device__ __forceinline__ float unscaled(float acc, float value_scale) const {
    return fabsf(value_scale) < 1.f ? acc * unwide_ * value_scale : value_scale * unwide_ * acc;
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
    // of_warp is free: its maxima were read before the last barrier of the last step.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float of_warp = lanes_sum<3>(sum_[half]);
      if (lane_ % 4 == 0) smem_.of_warp[warp_][lane_ / 4 + 8 * half] = of_warp;
    }
    __syncthreads();  // the sums of the warps are published
#pragma unroll
    for (int half = 0; half < 2; ++half) sum_[half] = sum_of_warps(lane_ / 4 + 8 * half);
  }

  // l of one head, once reduce_sum has published it.
  __device__ __forceinline__ float sum_of_warps(int head) const {
    float sum = 0.f;
#pragma unroll
    for (int w = 0; w < kThreads / 32; ++w) sum += smem_.of_warp[w][head];
    return sum;
  }

  const Task& task_;
  Smem<kSplitK>& smem_;
  int tid_, warp_, lane_;
  const int tiles_;
  float max_[2] = {minus_infinity(), minus_infinity()};  // m of heads g, g + 8
  float sum_[2] = {};                                    // l of this thread's candidates; at the end of all

  unsigned query_[kHeld<kSplitK>][4];  // path 0: A fragments of Q', of the first steps of 16 channels
  float acc_[4][2][4] = {};            // 0, 1: [chunk of 16 channels][even, odd channels][C fragment], times 2^15
  float unit_[2];                      // 1, 2: nats per unit of a score, heads g, g + 8
  float first_max_[2] = {};            // 1: m after the first tile with a candidate
  bool watch_tail_ = false;            // 1: a value_scale makes tails matter
  float wide_acc_[kMaxGroup][2] = {};  // 2: channels 2 * tid and the next, times 2^100
  float unwide_ = 1.f / kWide;         // 2: what takes acc and l to what they are published as, but for value_scale
};

}  // namespace int8_tc
