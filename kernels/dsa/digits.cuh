// SPDX-License-Identifier: MIT
// kernels/dsa/digits.cuh - the body of int8-digits: one CTA attends up to 4 * kHeads query heads of a row and KV head
// to a run of the row's candidates in integer arithmetic, and the CTAs of the run's row merge what they have.
//
// Computes  x, m, l as int8_tc.cuh has them, and out[d] = value_scale[d] * sum exp(x[c] - m) * v8[c,d] / l.
// Warps     8 compute, 4 gather. The gather warps copy K and V of a step of 128 candidates into one of kSlots slots
//           each, and so wait where the load-store unit does; the compute warps never copy.
//           Scores: warp w owns candidates [16w, 16w + 16) of a step, all heads. Output: warp w owns channels
//           [32w, 32w + 32), all heads. Both products are INT8 x INT8 -> INT32 with candidates or channels as rows and
//           the digits of heads as columns: lane 4g + t holds all digits of heads kHeads * t + j, whichever product.
// Paths     0 integer  probabilities as four UINT8 digits: p * 2^32 relative to the step's maximum, rounded. Needs for
//                      each channel |value_scale| <= 2^8 (so finite).
//           1 wide     the scores of 0, probabilities in FP32 times 2^100, values multiplied in FP32 on CUDA cores.
//           All CTAs of a row and KV head see the same value_scale, so they take the same path.
// Numerics  Query as four INT8 digits (int8_query.cuh), codes as they are: |dx| as on the path digits of int8_tc.cuh.
//           0  p is off by 2^-22 p + 2^-33, the sums of a step are exact integers (255 * 128 * 128 < 2^31), rounded to
//              FP32 twice, 2^-24 each. With |value_scale| <= 2^8 a candidate's p adds at most 2^-18 to the output.
//           1  as on the path single of int8_tc.cuh.
//           l sums the unrounded FP32 p. value_scale is applied last.
// Merging   In the order of the splits, whoever does it: the bits do not depend on which CTA was first.
// Not finite  As int8_tc.cuh has it. Equal maxima differ by 0 even if their unit is NaN.
// Needs     sm_80+; head size 256; 0 <= scale <= 1; candidates <= 2^20; query, key, value, both scales and out 16-byte
//           aligned; FP32 denormals kept.
#pragma once

#include <cuda_bf16.h>

#include "common/barrier.cuh"
#include "common/ptx.cuh"
#include "common/softmax.cuh"
#include "common/warp.cuh"
#include "common/wgmma.cuh"
#include "dsa/cache.cuh"
#include "dsa/int8_query.cuh"

namespace digits {

using int8_tc::kDigits;

// The number with these digits, the most significant first, rounded twice like int8_tc::combine_digits. |d| <= 2^22, so
// that adding its bits to those of 1.5 * 2^23 makes it a float: an integer conversion has an eighth of the rate.
__device__ __forceinline__ float combine_digits(int d0, int d1, int d2, int d3) {
  constexpr float kOffset = 12582912.f;
  const auto shifted = [](int d) { return __int_as_float(d + 0x4b400000); };
  const float high = fmaf(shifted(d0), 256.f, -257.f * kOffset) + shifted(d1);  // the fmaf is exact
  const float low = fmaf(shifted(d2), 256.f, -257.f * kOffset) + shifted(d3);
  return fmaf(high, 65536.f, low);
}

// c += a * b as mma_m16n8k32, but b unsigned.
__device__ __forceinline__ void mma_s8_u8_m16n8k32(int (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

constexpr int kHeadSize = 256;
constexpr int kTile = 64;   // candidates: splits are runs of tiles
constexpr int kStep = 128;  // candidates of a step of the main loop: 16 for each compute warp
constexpr int kComputeWarps = 8;
constexpr int kCompute = 32 * kComputeWarps;  // threads
constexpr int kGather = 128;
constexpr int kThreads = kCompute + kGather;
constexpr int kMaxCluster = 16;
constexpr int kChunks = 2 * kComputeWarps;  // of a CTA's result: half of the heads, 32 channels
constexpr int kMaxReceived = 21;            // chunks of all CTAs that one CTA merges: clusters of 1 .. 8, 10 and 16

enum Path : int { kInteger, kWidePath, kPaths };
constexpr int kAutomatic = -1;
constexpr float kMaxValueScale = 256.f;     // of path 0
constexpr float kInteger32 = 4294967296.f;  // 2^32
constexpr float kWideExponent = 100.f;
constexpr float kWide = 1.2676506002282294e30f;  // 2^100
// The score of no candidate. Finite, as a difference is multiplied by a unit that may be 0.
constexpr float kNone = -3e38f;

enum Barrier : int { kComputeBarrier = 1, kHeadsBarrier, kWeightsBarrier };

struct Empty {};
template <bool kCondition, typename T>
struct If {
  using type = T;
};
template <typename T>
struct If<false, T> {
  using type = Empty;
};

// What the CTAs of a cluster send each other.
template <int kHeads>
struct Inbox {
  alignas(16) float chunk[kMaxReceived][2 * kHeads][8]
                         [4];            // [chunk of mine * CTAs + CTA][head of the half][g][16-channel block, d]
  float2 head[kMaxCluster][4 * kHeads];  // m and l
  float weight[4 * kHeads][kMaxCluster];
  unsigned long long heads_there, chunks_there;
};

template <int kHeads, int kSlots, bool kCluster>
struct alignas(1024) Smem {
  Code key[kSlots][2][kStep][128];       // the halves of the channels, as wgmma wants them
  Code value[kSlots][kStep][kHeadSize];  // 16-byte chunk c of row r lies at c ^ (r % 8)
  Code digit[2][16 * kHeads][128];       // q * key_scale as wgmma wants it
  union {
    alignas(16) Code probability[16 * kHeads][kStep + 16];  // [column][candidate]
    alignas(16) float wide_probability[kStep][4 * kHeads];
  };
  float value_scale[kHeadSize];
  alignas(16) float max_of_warp[4 * kHeads][kComputeWarps];
  alignas(16) float sum_of_warp[4 * kHeads][kComputeWarps];
  float max[4 * kHeads], sum[4 * kHeads];  // sum: of all CTAs
  float unit[4 * kHeads];                  // log2 of a factor of p per unit of a score
  float rescale[4 * kHeads];               // path 1: square root of what a step's new maximum does to acc
  bool wide, last;                         // path 1; this CTA merges
  typename If<kCluster, Inbox<kHeads>>::type inbox;
  unsigned long long key_there[kSlots], value_there[kSlots], key_free[kSlots], value_free[kSlots];
};

// The part of the problem that one CTA sees, and where its result goes.
struct Task {
  const __nv_bfloat16* query;  // [heads, 256]
  const Code* key;             // [context, 256]
  const Code* value;           // [context, 256]
  const float* key_scale;      // [256]
  const float* value_scale;    // [256]
  const int* selected;         // [candidates]
  __nv_bfloat16* out;          // [heads, 256]
  float* chunks;               // merge through global memory: [splits, kChunks, 2 * kHeads, 8, 4]
  float2* head_sums;           // [splits, 4 * kHeads]
  unsigned* arrived;           // 0, and 0 again when the row is merged
  int context, heads, begin, end, split, splits;
  float scale;
};

// What each split's partial counts for one head: lane i of those that differ in the bits of kLanes has m and l of split
// i. Path 0: exp(m - M) / l; path 1: the square root of exp(m - M), and l in smem.sum.
template <Path kPath, int kLanes, typename S>
__device__ __forceinline__ float weigh(S& smem, int head, float2 m_l) {
  const float m = lanes_max<kLanes>(m_l.x);
  const float below = m_l.x == m ? 0.f : (m_l.x - m) * smem.unit[head];  // also if the unit is NaN
  if constexpr (kPath == kWidePath) {
    const float root = ex2(0.5f * below);
    const float l = lanes_sum<kLanes>(m_l.y * root * root);
    if ((threadIdx.x & kLanes) == 0) smem.sum[head] = l;
    return root;
  }
  const float w = ex2(below);
  const float l = lanes_sum<kLanes>(m_l.y * w);
  return l == 0.f ? 0.f : w / l;
}

// Chunks that each CTA of a cluster merges, but that the last ones may have fewer.
__device__ __forceinline__ int chunks_per_cta(int ctas) { return (kChunks + ctas - 1) / ctas; }

// Initialises the barriers of a CTA, by one thread.
template <int kHeads, int kSlots, bool kCluster, typename S>
__device__ __forceinline__ void initialise_barriers(const Task& task, S& smem) {
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    mbarrier_init(shared_address(&smem.key_there[slot]), kGather);
    mbarrier_init(shared_address(&smem.value_there[slot]), kGather);
    mbarrier_init(shared_address(&smem.key_free[slot]), kComputeWarps);
    mbarrier_init(shared_address(&smem.value_free[slot]), kComputeWarps);
  }
  if constexpr (kCluster) {
    auto& inbox = smem.inbox;
    mbarrier_init(shared_address(&inbox.heads_there), 1);
    mbarrier_init(shared_address(&inbox.chunks_there), 1);
    fence_mbarrier_init();
    mbarrier_expect(shared_address(&inbox.heads_there), task.splits * 4 * kHeads * sizeof(float2));
    const int chunks = max(min(chunks_per_cta(task.splits), kChunks - task.split * chunks_per_cta(task.splits)), 0);
    mbarrier_expect(shared_address(&inbox.chunks_there), task.splits * chunks * sizeof(inbox.chunk[0]));
  }
}

constexpr int kRows = kStep / 8;  // of a step, for each gather thread

__device__ __forceinline__ void load_entries(const Task& task, int begin, int (&entry)[kRows]) {
#pragma unroll
  for (int n = 0; n < kRows; ++n) entry[n] = load_entry(task.selected, begin + 8 * n, task.end);
}

// A gather thread: 16 bytes of every eighth row of each step's K and V. A row that is no candidate's is not copied:
// what its place holds are codes, weighed with 0.
template <int kHeads, int kSlots, bool kCluster, typename S>
__device__ __forceinline__ void gather(const Task& task, S& smem) {
  const int chunk = threadIdx.x % 16, first = (threadIdx.x - kCompute) / 16;
  const Code* key = task.key + 16 * chunk;
  const Code* value = task.value + 16 * chunk;
  const unsigned key_target = shared_address(&smem.key[0][chunk / 8][first][16 * (chunk % 8 ^ first)]);
  const unsigned value_target = shared_address(&smem.value[0][first][16 * (chunk ^ first)]);
  int entry[kRows];
  load_entries(task, task.begin + first, entry);
  // After the loads: the copies wait for these, and everything else for the copies.
  if (threadIdx.x == kCompute) initialise_barriers<kHeads, kSlots, kCluster>(task, smem);
  __syncthreads();  // the mbarriers are initialised
  if constexpr (kCluster) cluster_arrive();
#pragma unroll 1
  for (int i = 0, begin = task.begin; begin < task.end; ++i, begin += kStep) {
    const int slot = i % kSlots, round = i / kSlots;
    int position[kRows];
#pragma unroll
    for (int n = 0; n < kRows; ++n) position[n] = candidate_or_none(entry[n], task.context);
    if (kSlots > 1) load_entries(task, begin + kStep + first, entry);
    if (round > 0) mbarrier_wait(shared_address(&smem.key_free[slot]), (round - 1) % 2);
#pragma unroll
    for (int n = 0; n < kRows; ++n)
      cp_async_16(key_target + slot * sizeof(smem.key[0]) + 1024 * n, cache_row(key, position[n], kHeadSize),
                  position[n]);
    mbarrier_arrive_copied(shared_address(&smem.key_there[slot]));
    if (round > 0) mbarrier_wait(shared_address(&smem.value_free[slot]), (round - 1) % 2);
#pragma unroll
    for (int n = 0; n < kRows; ++n)
      cp_async_16(value_target + slot * sizeof(smem.value[0]) + 2048 * n, cache_row(value, position[n], kHeadSize),
                  position[n]);
    mbarrier_arrive_copied(shared_address(&smem.value_there[slot]));
    if (kSlots == 1) load_entries(task, begin + kStep + first, entry);  // while everyone else is busy with this step
  }
}

// The gather warps, once all is copied and while the compute warps have PV to do: the weights of a cluster's CTAs.
template <int kHeads, typename S>
__device__ __forceinline__ void weigh_cluster(const Task& task, S& smem) {
  auto& inbox = smem.inbox;
  named_sync<kHeadsBarrier, kThreads>();
  mbarrier_wait_cluster(shared_address(&inbox.heads_there), 0);
  const int split = threadIdx.x % 16;
  for (int head = (threadIdx.x - kCompute) / 16; head < 4 * kHeads; head += kGather / 16) {
    const float2 m_l = split < task.splits ? inbox.head[split][head] : make_float2(kNone, 0.f);
    inbox.weight[head][split] =
        smem.wide ? weigh<kWidePath, 15>(smem, head, m_l) : weigh<kInteger, 15>(smem, head, m_l);
  }
  named_arrive<kWeightsBarrier, kThreads>();
}

// The compute warps of one CTA at work.
template <int kHeads, int kSlots, bool kCluster>
class Attention {
 public:
  using S = Smem<kHeads, kSlots, kCluster>;

  __device__ __forceinline__ Attention(const Task& task, S& smem)
      : task_(task), smem_(smem), tid_(threadIdx.x), warp_(threadIdx.x / 32), lane_(threadIdx.x % 32) {
#pragma unroll
    for (int j = 0; j < kHeads; ++j) max_[j] = kNone;
  }

  __device__ __forceinline__ void run(int forced, unsigned* path_counts) {
    const bool wide = prologue(forced);
    if (path_counts != nullptr && tid_ == 0) atomicAdd(path_counts + (wide ? kWidePath : kInteger), 1u);
    if (__builtin_expect(wide, false)) {
      pass<kWidePath>();
      return;
    }
    pass<kInteger>();
  }

 private:
  // Leaves the digits, units and value_scale in shared memory, seen by the compute warps. Whether path 1 is taken.
  __device__ __forceinline__ bool prologue(int forced) {
    // All of it is requested before any is used.
    load_entries(task_.begin);
    uint4 q = load_query(warp_), next = load_query(warp_ + kComputeWarps);
    float key_scale[8];
    const float4* scales = reinterpret_cast<const float4*>(task_.key_scale) + 2 * lane_;
    *reinterpret_cast<float4*>(key_scale) = __ldg(scales);
    *reinterpret_cast<float4*>(key_scale + 4) = __ldg(scales + 1);
    const float value_scale = __ldg(task_.value_scale + tid_);
    __syncthreads();  // the mbarriers are initialised
    if constexpr (kCluster) cluster_arrive();
    // Warp w prepares heads w and w + 8; lane i their channels [8i, 8i + 8). Not unrolled: the code comes from memory.
#pragma unroll 1
    for (int head = warp_; head < 4 * kHeads; head += kComputeWarps, q = next) {
      int8_tc::Channels channels(q, key_scale);
      const int8_tc::DigitScale of_head = int8_tc::digit_scale(channels, task_.scale);
      alignas(8) Code digit[kDigits][8];
      int8_tc::fold_digits(channels, of_head.factor, &digit[0][0], 8);
      const int t = head / kHeads, j = head % kHeads;
#pragma unroll
      for (int d = 0; d < kDigits; ++d) {
        const int column = 8 * (2 * j + d / 2) + 2 * t + d % 2;
        *reinterpret_cast<uint2*>(
            &smem_.digit[lane_ / 16][column][16 * (lane_ % 16 / 2 ^ column % 8) + 8 * (lane_ % 2)]) =
            *reinterpret_cast<const uint2*>(digit[d]);
      }
      if (lane_ == 0) smem_.unit[head] = of_head.unit * kLog2E;
    }
    smem_.value_scale[tid_] = value_scale;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    fence_for_async();
#endif
    // The digits, units and value scales are published.
    const bool exceeds = !(fabsf(value_scale) <= kMaxValueScale);  // so NaN counts
    const bool beyond = named_sync_or<kComputeBarrier, kCompute>(exceeds);
    const bool wide = forced == kAutomatic ? beyond : forced == kWidePath;
    if (tid_ == 0) smem_.wide = wide;
#pragma unroll
    for (int j = 0; j < kHeads; ++j) unit_[j] = smem_.unit[kHeads * (lane_ % 4) + j];
    if constexpr (kCluster) {  // here, where everyone waits for K
      own_chunk_ = inbox_of(2 * warp_ + lane_ % 4 / 2);
      asm volatile("" : "+r"(own_chunk_.target), "+r"(own_chunk_.barrier));  // and not again where it is used
    }
    return wide;
  }

  __device__ __forceinline__ uint4 load_query(int head) const {
    return head < task_.heads ? __ldg(reinterpret_cast<const uint4*>(task_.query + head * kHeadSize) + lane_)
                              : make_uint4(0, 0, 0, 0);
  }

  __device__ __forceinline__ void load_entries(int begin) {
#pragma unroll
    for (int e = 0; e < 2; ++e)
      entry_[e] = load_entry(task_.selected, begin + 16 * warp_ + lane_ / 4 + 8 * e, task_.end);
  }

  template <Path kPath>
  __device__ __forceinline__ void pass() {
    float wide_acc[kPath == kWidePath ? 4 * kHeads : 1] = {};
#pragma unroll 1
    for (int i = 0, begin = task_.begin; begin < task_.end; ++i, begin += kStep) {
      const int slot = i % kSlots, parity = i / kSlots % 2;
      const bool last = begin + kStep >= task_.end;
      bool valid[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) valid[e] = candidate_or_none(entry_[e], task_.context) >= 0;
      load_entries(begin + kStep);

      float x[2][kHeads];
      mbarrier_wait(shared_address(&smem_.key_there[slot]), parity);
      scores(slot, x);
      __syncwarp();
      if (lane_ == 0) mbarrier_arrive(shared_address(&smem_.key_free[slot]));
#pragma unroll
      for (int j = 0; j < kHeads; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) x[e][j] = valid[e] ? x[e][j] : kNone;
        const float of_warp = lanes_max<28>(fmaxf(x[0][j], x[1][j]));
        if (lane_ < 4) smem_.max_of_warp[kHeads * lane_ + j][warp_] = of_warp;
      }
      named_sync<kComputeBarrier,
                 kCompute>();  // the maxima are published, and everyone is done with P of the last step
      if constexpr (kPath == kWidePath)
        wide_probabilities(x, valid);
      else
        probabilities(x, valid);
      if (last) publish_sums();
      named_sync<kComputeBarrier, kCompute>();  // P is published, and m and l after the last step
      if (last) send_heads();
      mbarrier_wait(shared_address(&smem_.value_there[slot]), parity);
      if constexpr (kPath == kWidePath)
        wide_weighted_values(slot, wide_acc);
      else
        weighted_values(slot);
      __syncwarp();
      if (lane_ == 0) mbarrier_arrive(shared_address(&smem_.value_free[slot]));
    }
    if (task_.begin >= task_.end) {  // a split without tiles
      publish_sums();
      named_sync<kComputeBarrier, kCompute>();  // m and l are published
      send_heads();
    }
    if constexpr (kPath == kWidePath)
      send_wide(wide_acc);
    else
      send();
    merge<kPath>();
  }

  // x[e][j]: candidate 16w + g + 8e of the step, head kHeads * t + j, in units of X times a code.
  __device__ __forceinline__ void scores(int slot, float (&x)[2][kHeads]) {
    int sum[8 * kHeads];  // [n-tile of 8 columns][candidate g, g + 8][column 2t, 2t + 1]
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    fence_for_async();
    __syncwarp();
    static_assert(sizeof(smem_.key[0][0]) == kWgmmaHalf);
    wgmma_256(sum, wgmma_operand(shared_address(&smem_.key[slot][0][64 * (warp_ / 4)][0])),
              wgmma_operand(shared_address(&smem_.digit[0][0][0])));
#else
#pragma unroll
    for (int n = 0; n < 8 * kHeads; ++n) sum[n] = 0;
    const int row = 16 * warp_ + lane_ % 16, column = lane_ % 8;
#pragma unroll
    for (int k = 0; k < kHeadSize / 64; ++k) {
      const int half = k / 2;
      unsigned codes[2][4];
#pragma unroll
      for (int step = 0; step < 2; ++step)
        ldmatrix_x4(codes[step],
                    shared_address(&smem_.key[slot][half][row][16 * (4 * (k % 2) + 2 * step + lane_ / 16 ^ row % 8)]));
#pragma unroll
      for (int n = 0; n < 2 * kHeads; ++n) {
        unsigned digit[4];
        ldmatrix_x4(digit, shared_address(&smem_.digit[half][8 * n + column][16 * (4 * (k % 2) + lane_ / 8 ^ column)]));
        int (&c)[4] = reinterpret_cast<int (&)[4]>(sum[4 * n]);
        mma_m16n8k32(c, codes[0], digit[0], digit[1]);
        mma_m16n8k32(c, codes[1], digit[2], digit[3]);
      }
    }
#endif
#pragma unroll
    for (int j = 0; j < kHeads; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int* digit = &sum[8 * j + 2 * e];
        x[e][j] = combine_digits(digit[0], digit[1], digit[4], digit[5]);
      }
  }

  // The maximum of one head including this step.
  __device__ __forceinline__ float raised_max(int j) const {
    const float4* of_warp = reinterpret_cast<const float4*>(smem_.max_of_warp[kHeads * (lane_ % 4) + j]);
    const float4 a = of_warp[0], b = of_warp[1];
    return fmaxf(fmaxf(fmaxf(max_[j], fmaxf(a.x, a.y)), fmaxf(a.z, a.w)), fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w)));
  }

  // Moves m to the maximum including this step, rescales l and acc to it, adds to l and writes P.
  __device__ __forceinline__ void probabilities(const float (&x)[2][kHeads], const bool (&valid)[2]) {
    const int slot = 16 * warp_ + 2 * (lane_ / 4);  // of candidates g and g + 8, side by side
#pragma unroll
    for (int j = 0; j < kHeads; ++j) {
      const float m = raised_max(j);
      const float rescale = max_[j] == m ? 1.f : ex2((max_[j] - m) * unit_[j]);
      max_[j] = m;
      sum_[j] *= rescale;
#pragma unroll
      for (int n = 0; n < 4; ++n) acc_[n / 2][j][n % 2] *= rescale;
      unsigned p[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        // The factor on the result: 32 added to the exponent would take five bits of it.
        const float y = valid[e] ? ex2((x[e][j] - m) * unit_[j]) * kInteger32 : 0.f;
        sum_[j] += y;
        p[e] = __float2uint_rn(y);  // 2^32 becomes 2^32 - 1
      }
#pragma unroll
      for (int d = 0; d < kDigits; ++d)  // the most significant first
        *reinterpret_cast<unsigned short*>(&smem_.probability[8 * (2 * j + d / 2) + 2 * (lane_ % 4) + d % 2][slot]) =
            static_cast<unsigned short>(__byte_perm(p[0], p[1], 3 - d | (7 - d) << 4));
    }
  }

  // Path 1: as above, with P in FP32 times 2^100, and the rescaling of acc left to its owners.
  __device__ __forceinline__ void wide_probabilities(const float (&x)[2][kHeads], const bool (&valid)[2]) {
#pragma unroll
    for (int j = 0; j < kHeads; ++j) {
      const float m = raised_max(j);
      const float root = max_[j] == m ? 1.f : ex2((max_[j] - m) * (0.5f * unit_[j]));
      if (warp_ == 0 && lane_ < 4) smem_.rescale[kHeads * lane_ + j] = root;
      max_[j] = m;
      sum_[j] = sum_[j] * root * root;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float t = (x[e][j] - m) * unit_[j];
        const bool near = t >= -kWideExponent;  // false for NaN
        const float y = ex2_subnormal(near ? t : t + kWideExponent) * (near ? kWide : 1.f);
        const float p = valid[e] ? y : 0.f;
        sum_[j] += p;
        smem_.wide_probability[16 * warp_ + lane_ / 4 + 8 * e][kHeads * (lane_ % 4) + j] = p;
      }
    }
  }

  // acc += P * V for this warp's 32 channels: as rows 2g and 2g + 1 of two blocks of 16, columns the digits of heads.
  __device__ __forceinline__ void weighted_values(int slot) {
    int sum[2][2 * kHeads][4] = {};
    const int row = lane_, column = lane_ % 8;
#pragma unroll
    for (int k = 0; k < kStep / 64; ++k) {
      unsigned p[2 * kHeads][4];
#pragma unroll
      for (int n = 0; n < 2 * kHeads; ++n)
        ldmatrix_x4(p[n], shared_address(&smem_.probability[8 * n + column][64 * k + 16 * (lane_ / 8)]));
#pragma unroll
      for (int step = 0; step < 2; ++step)
#pragma unroll
        for (int block = 0; block < 2; ++block) {
          // A thread gets channels 2g and 2g + 1 of candidates 2t and 2t + 1 from each of four matrices of 8
          // candidates; in the order of P's slots, those of the first two matrices alternate.
          unsigned codes[4];
          ldmatrix_x4_trans(
              codes, shared_address(&smem_.value[slot][64 * k + 32 * step + row][16 * (2 * warp_ + block ^ row % 8)]));
          const unsigned a[4] = {__byte_perm(codes[0], codes[1], 0x6240), __byte_perm(codes[0], codes[1], 0x7351),
                                 __byte_perm(codes[2], codes[3], 0x6240), __byte_perm(codes[2], codes[3], 0x7351)};
#pragma unroll
          for (int n = 0; n < 2 * kHeads; ++n) mma_s8_u8_m16n8k32(sum[block][n], a, p[n][2 * step], p[n][2 * step + 1]);
        }
    }
#pragma unroll
    for (int block = 0; block < 2; ++block)
#pragma unroll
      for (int j = 0; j < kHeads; ++j)
#pragma unroll
        for (int d = 0; d < 2; ++d) {
          const int* high = &sum[block][2 * j][2 * d];
          const int* low = &sum[block][2 * j + 1][2 * d];
          acc_[block][j][d] += combine_digits(high[0], high[1], low[0], low[1]);
        }
  }

  // Path 1: acc += P * V for channel `tid` and all heads.
  __device__ __forceinline__ void wide_weighted_values(int slot, float (&acc)[4 * kHeads]) {
#pragma unroll
    for (int head = 0; head < 4 * kHeads; ++head) acc[head] = acc[head] * smem_.rescale[head] * smem_.rescale[head];
#pragma unroll 4
    for (int row = 0; row < kStep; ++row) {
      const float v = smem_.value[slot][row][16 * (tid_ / 16 ^ row % 8) + tid_ % 16];
#pragma unroll
      for (int head = 0; head < 4 * kHeads; ++head) acc[head] = fmaf(smem_.wide_probability[row][head], v, acc[head]);
    }
  }

  // m, and l of each warp's candidates, for the compute warps.
  __device__ __forceinline__ void publish_sums() {
#pragma unroll
    for (int j = 0; j < kHeads; ++j) {
      const float of_warp = lanes_sum<28>(sum_[j]);
      if (lane_ < 4) smem_.sum_of_warp[kHeads * lane_ + j][warp_] = of_warp;
      if (warp_ == 0 && lane_ < 4) smem_.max[kHeads * lane_ + j] = max_[j];
    }
  }

  // --- to whoever merges -------------------------------------------------------------------------------------------

  // m and l of each head, long before acc: to each CTA of the cluster, or to global memory.
  __device__ __forceinline__ void send_heads() {
    const int to = tid_ / 16, head = tid_ % 16;
    if constexpr (kCluster) {
      named_arrive<kHeadsBarrier, kThreads>();  // the gather warps may read what path and units this CTA has
      cluster_wait();                           // the mbarriers of every CTA are initialised
    }
    if (head >= 4 * kHeads || to >= (kCluster ? task_.splits : 1)) return;
    const float4* of_warp = reinterpret_cast<const float4*>(smem_.sum_of_warp[head]);
    const float4 a = of_warp[0], b = of_warp[1];
    const float2 m_l = make_float2(smem_.max[head], ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w)));
    if constexpr (kCluster) {
      auto& inbox = smem_.inbox;
      cluster_store(cluster_address(shared_address(&inbox.head[task_.split][head]), to),
                    cluster_address(shared_address(&inbox.heads_there), to), m_l);
    } else {
      task_.head_sums[task_.split * 4 * kHeads + head] = m_l;
    }
  }

  // Where this CTA's part of a chunk goes in a cluster.
  struct Target {
    unsigned target, barrier;
  };

  __device__ __forceinline__ Target inbox_of(int chunk) const {
    const int each = chunks_per_cta(task_.splits), to = chunk / each;
    auto& inbox = smem_.inbox;
    return {cluster_address(shared_address(&inbox.chunk[chunk % each * task_.splits + task_.split]), to),
            cluster_address(shared_address(&inbox.chunks_there), to)};
  }

  __device__ __forceinline__ float* partial(int chunk) const {
    return task_.chunks + (task_.split * kChunks + chunk) * (64 * kHeads);
  }

  __device__ __forceinline__ void send() {
    const int t = lane_ % 4;
#pragma unroll
    for (int j = 0; j < kHeads; ++j) {
      const float4 x = make_float4(acc_[0][j][0], acc_[0][j][1], acc_[1][j][0], acc_[1][j][1]);
      const int at = 32 * (kHeads * (t % 2) + j) + 4 * (lane_ / 4);
      if constexpr (kCluster)
        cluster_store(own_chunk_.target + at * static_cast<int>(sizeof(float)), own_chunk_.barrier, x);
      else
        *reinterpret_cast<float4*>(partial(2 * warp_ + t / 2) + at) = x;
    }
  }

  __device__ __forceinline__ void send_wide(const float (&acc)[4 * kHeads]) {
#pragma unroll
    for (int head = 0; head < 4 * kHeads; ++head) {
      const int chunk = 2 * warp_ + head / (2 * kHeads);
      const int at = 32 * (head % (2 * kHeads)) + 4 * (lane_ % 16 / 2) + 2 * (lane_ / 16) + lane_ % 2;
      if constexpr (kCluster) {
        const Target of_chunk = inbox_of(chunk);
        cluster_store(of_chunk.target + at * static_cast<int>(sizeof(float)), of_chunk.barrier, acc[head]);
      } else {
        partial(chunk)[at] = acc[head];
      }
    }
  }

  // --- merging -----------------------------------------------------------------------------------------------------

  template <Path kPath>
  __device__ __forceinline__ void merge() {
    if constexpr (kCluster) {
      named_sync<kWeightsBarrier, kThreads>();  // the gather warps have the weights
      mbarrier_wait_cluster(shared_address(&smem_.inbox.chunks_there), 0);
      const int first = task_.split * chunks_per_cta(task_.splits),
                mine = min(chunks_per_cta(task_.splits), kChunks - first);
      for (int i = tid_; i < mine * 32 * kHeads; i += kCompute) {
        const int chunk = i / (32 * kHeads), at = i % (32 * kHeads);
        const float2* from = reinterpret_cast<const float2*>(smem_.inbox.chunk[chunk * task_.splits]) + at;
        const float* weight = smem_.inbox.weight[head_of(first + chunk, at)];
        float2 sum = {};
#pragma unroll 8
        for (int split = 0; split < task_.splits; ++split) {
          const float w = weight[split], factor = kPath == kWidePath ? w : 1.f;
          const float2 x = from[split * 32 * kHeads];
          sum.x = fmaf(w, x.x * factor, sum.x);
          sum.y = fmaf(w, x.y * factor, sum.y);
        }
        store<kPath>(first + chunk, at, sum);
      }
    } else {
      named_sync<kComputeBarrier, kCompute>();  // the CTA's partial is written
      if (tid_ == 0) smem_.last = increment_and_wrap(task_.arrived, task_.splits - 1) == task_.splits - 1;
      named_sync<kComputeBarrier, kCompute>();  // everyone knows, and sees what the other CTAs wrote
      if (!smem_.last) return;
      merge_global<kPath>();
    }
  }

  // By the CTA that came last. Its own partial too comes from memory, so that the order is that of the splits.
  template <Path kPath>
  __device__ __forceinline__ void merge_global() {
    constexpr int kPieces = kChunks * 16 * kHeads / kCompute;  // of a split, for each thread: 4 channels of a head each
    constexpr int kAhead = 2;                                  // splits in flight
    float* weights = reinterpret_cast<float*>(smem_.key);      // [4 * kHeads][32]
    const float4* chunks = reinterpret_cast<const float4*>(task_.chunks) + tid_;
    float4 part[kAhead][kPieces];
    const auto load = [&](int ahead, int split) {
#pragma unroll
      for (int n = 0; n < kPieces; ++n)
        part[ahead][n] =
            split < task_.splits ? __ldcg(chunks + (split * kPieces + n) * kCompute) : make_float4(0.f, 0.f, 0.f, 0.f);
    };
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) load(ahead, ahead);
    for (int head = warp_; head < 4 * kHeads; head += kComputeWarps) {
      const float2 m_l =
          lane_ < task_.splits ? __ldcg(task_.head_sums + lane_ * 4 * kHeads + head) : make_float2(kNone, 0.f);
      weights[32 * head + lane_] = weigh<kPath, 31>(smem_, head, m_l);
    }
    named_sync<kComputeBarrier, kCompute>();  // the weights are published
    float4 sum[kPieces] = {};
    for (int first = 0; first < task_.splits; first += kAhead) {
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        const int split = first + ahead;
#pragma unroll
        for (int n = 0; n < kPieces; ++n) {
          const float w = split < task_.splits ? weights[32 * head_of_piece(n) + split] : 0.f;
          add<kPath>(sum[n], w, part[ahead][n]);
        }
      }
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) load(ahead, first + kAhead + ahead);
    }
#pragma unroll
    for (int n = 0; n < kPieces; ++n) {
      const int piece = tid_ + kCompute * n, chunk = piece / (16 * kHeads), at = 2 * (piece % (16 * kHeads));
      store<kPath>(chunk, at, make_float2(sum[n].x, sum[n].y));
      store<kPath>(chunk, at + 1, make_float2(sum[n].z, sum[n].w));
    }
  }

  __device__ __forceinline__ int head_of_piece(int n) const {
    const int piece = tid_ + kCompute * n;
    return head_of(piece / (16 * kHeads), 2 * (piece % (16 * kHeads)));
  }

  template <Path kPath>
  __device__ __forceinline__ static void add(float4& sum, float w, float4 x) {
    const float factor = kPath == kWidePath ? w : 1.f;
    sum.x = fmaf(w, x.x * factor, sum.x);
    sum.y = fmaf(w, x.y * factor, sum.y);
    sum.z = fmaf(w, x.z * factor, sum.z);
    sum.w = fmaf(w, x.w * factor, sum.w);
  }

  __device__ __forceinline__ int head_of(int chunk, int at) const { return 2 * kHeads * (chunk % 2) + at / 16; }

  // Two channels of one head: piece `at` of a chunk.
  template <Path kPath>
  __device__ __forceinline__ void store(int chunk, int at, float2 x) const {
    const int head = head_of(chunk, at);
    const int channel = 32 * (chunk / 2) + 16 * (at % 2) + 2 * (at / 2 % 8);
    const float2 scale = *reinterpret_cast<const float2*>(&smem_.value_scale[channel]);
    if constexpr (kPath == kWidePath) {
      x.x = divided(x.x, smem_.sum[head], scale.x);
      x.y = divided(x.y, smem_.sum[head], scale.y);
    } else {
      x.x *= scale.x;
      x.y *= scale.y;
    }
    if (head < task_.heads)
      *reinterpret_cast<__nv_bfloat162*>(task_.out + head * kHeadSize + channel) = __floats2bfloat162_rn(x.x, x.y);
  }

  // acc / l * value_scale of path 1, without an intermediate result that is out of range although it is not.
  __device__ __forceinline__ static float divided(float acc, float l, float value_scale) {
    if (l == 0.f) return 0.f;
    return fabsf(value_scale) < 1.f ? acc / l * value_scale : value_scale / l * acc;
  }

  const Task& task_;
  S& smem_;
  int tid_, warp_, lane_;
  int entry_[2];  // of candidates 16w + g and + 8 of the next step
  float unit_[kHeads];
  float max_[kHeads], sum_[kHeads] = {};  // m, and l of this thread's candidates
  Target own_chunk_ = {};
  float acc_[2][kHeads][2] = {};  // path 0: [block of 16 channels][head][2g, 2g + 1]
};

// A CTA of threads that each do their part.
template <int kHeads, int kSlots, bool kCluster>
__device__ __forceinline__ void attend(const Task& task, int forced, unsigned* path_counts) {
  using S = Smem<kHeads, kSlots, kCluster>;
  extern __shared__ __align__(1024) unsigned char smem_bytes[];
  S& smem = *reinterpret_cast<S*>(smem_bytes);
  if (threadIdx.x >= kCompute) {
    gather<kHeads, kSlots, kCluster>(task, smem);
    if constexpr (kCluster) weigh_cluster<kHeads>(task, smem);
    return;
  }
  Attention<kHeads, kSlots, kCluster>(task, smem).run(forced, path_counts);
}

}  // namespace digits
