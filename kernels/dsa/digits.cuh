// SPDX-License-Identifier: MIT
// kernels/dsa/digits.cuh - the body of int8-digits: one CTA attends up to 4 * kHeads query heads of a row and KV head
// to a run of the row's candidates in integer arithmetic, and the CTAs of the run's row merge what they have.
//
// Computes  x, m, l as int8_tc.cuh has them, and out[d] = value_scale[d] * sum exp(x[c] - m) * v8[c,d] / l.
// Warps     8 compute, 4 gather. A step is kRuns runs of 128 candidates that share a maximum; the gather warps copy K
//           and V of each run into a slot of its own, K of a step first, and so wait where the load-store unit does;
//           the compute warps never copy.
//           Scores: warp w owns candidates [16w, 16w + 16) of a run, all heads. Output: warp w owns channels
//           [32w, 32w + 32), all heads. Both products are INT8 x INT8 -> INT32 with candidates or channels as rows and
//           the digits of heads as columns: lane 4g + t holds all digits of heads kHeads * t + j, whichever product.
// Paths     0 integer  probabilities as four UINT8 digits: p * 2^32 relative to the step's maximum, rounded. Needs for
//                      each channel |value_scale| <= 2^8 (so finite).
//           1 wide     the scores of 0, probabilities in FP32 times 2^100, values multiplied in FP32 on CUDA cores.
//           All CTAs of a row and KV head see the same value_scale, so they take the same path.
// Numerics  Query as four INT8 digits (int8_query.cuh), codes as they are: |dx| as on the path digits of int8_tc.cuh.
//           0  p is off by 2^-22 p + 2^-33. The sums of a step are exact integers, rounded to FP32 twice, 2^-24 each:
//              those of one or two runs in halves (257 * 255 * 128 * 256 < 2^31), of three runs otherwise. With
//              |value_scale| <= 2^8 a candidate's p adds at most 2^-18 to the output.
//           1  as on the path single of int8_tc.cuh.
//           l sums the unrounded FP32 p. value_scale is applied last.
// Merging   Each CTA of a row merges its share of the channels of a head, by its gather warps, which get m and l before
//           P * V and the rest after: by clusters through each other's shared memory, or, where a row has more CTAs
//           than a cluster holds or the device holds too few clusters, by global memory from CTAs that are all
//           resident. In an order that depends on the splits alone, so the bits do not depend on which CTA was first.
// Not finite  As int8_tc.cuh has it. Equal maxima differ by 0 even if their unit is NaN.
// Needs     sm_80+; head size 256; 0 <= scale <= 1; candidates <= 2^20; query, key, value, both scales and out 16-byte
//           aligned; FP32 denormals kept.
#pragma once

#include <cuda_bf16.h>

#include "common/arrivals.cuh"
#include "common/barrier.cuh"
#include "common/mailbox.cuh"
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
constexpr int kTile = 64;  // candidates: splits are runs of tiles
constexpr int kRun = 128;  // candidates: 16 for each compute warp
constexpr int kComputeWarps = 8;
constexpr int kCompute = 32 * kComputeWarps;  // threads
constexpr int kGather = 128;
constexpr int kThreads = kCompute + kGather;
constexpr int kMaxCluster = 16;
constexpr int kMaxSplits = 32;              // without clusters
constexpr int kChunks = 2 * kComputeWarps;  // of a CTA's result: half of the heads, 32 channels
constexpr int kMaxReceived = 21;            // chunks of all CTAs that one CTA merges: clusters of 2 .. 8, 10 and 16

enum Path : int { kInteger, kWidePath, kPaths };
constexpr int kAutomatic = -1;
constexpr float kMaxValueScale = 256.f;     // of path 0
constexpr float kInteger32 = 4294967296.f;  // 2^32
constexpr float kWideExponent = 100.f;
constexpr float kWide = 1.2676506002282294e30f;  // 2^100
// The score of no candidate. Finite, as a difference is multiplied by a unit that may be 0.
constexpr float kNone = -3e38f;

enum Barrier : int { kComputeBarrier = 1, kGatherBarrier, kReadyBarrier };

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
                         [4];  // [chunk of mine * CTAs + CTA][head of the half][g][16-channel block, d]
  alignas(16) float2 head[4 * kHeads][kMaxCluster];  // m and l
  alignas(16) float weight[4 * kHeads][kMaxCluster];
  unsigned long long heads_there, chunks_there;
};

// K and V of a step; but of three runs the last V takes the place of the first K, as a CTA has no more.
__host__ __device__ constexpr int slots(int runs) { return runs < 3 ? 2 * runs : 5; }

template <int kHeads, int kRuns, bool kCluster>
struct alignas(1024) Smem {
  // Of a run each: K as [half of the channels][row][128] as wgmma wants it, or V as [row][256], where the 16-byte chunk
  // c of row r lies at c ^ (r % 8). A ring, which is filled with K of the runs of a step and then with V of them.
  Code slot[slots(kRuns)][kRun * kHeadSize];
  Code digit[2][16 * kHeads][128];  // q * key_scale as wgmma wants it
  union {
    alignas(1024) Code probability[kRuns][16 * kHeads][kRun];  // [column][candidate], as wgmma wants it
    alignas(16) float wide_probability[kRuns * kRun][4 * kHeads];
  };
  float value_scale[kHeadSize];
  alignas(16) float max_of_warp[4 * kHeads][kComputeWarps];
  alignas(16) float sum_of_lanes[4 * kHeads][kComputeWarps][8];  // l of each warp's candidates g and g + 8
  float max[4 * kHeads], sum[4 * kHeads];                        // sum: of all CTAs of a cluster
  float unit[4 * kHeads];                                        // log2 of a factor of p per unit of a score
  float rescale[4 * kHeads];  // path 1: square root of what a step's new maximum does to acc
  bool wide;                  // path 1
  typename If<kCluster, Inbox<kHeads>>::type inbox;
  unsigned long long there[slots(kRuns)], free[slots(kRuns)];
  unsigned long long sums_there;  // m and l of this CTA are published
};

// The part of the problem that one CTA sees, and where its result goes.
struct Task {
  const __nv_bfloat16* query;  // [heads, 256]
  const Code* key;             // [context, 256]
  const Code* value;           // [context, 256]
  const float* key_scale;      // [256]
  const float* value_scale;    // [256]
  const int* selected;         // [count]: those of this CTA's split
  __nv_bfloat16* out;          // [heads, 256]
  float4* pieces;              // mailboxes of the grid: [CTA that leaves][chunk][head of the half][g]
  float2* sums;                // [CTA that takes][split that leaves][4 * kHeads]: m and l
  int context, heads, count, split, splits;
  float scale;
};

// m and l of a head, once they are published: by 8 lanes, of which each gets both.
template <typename S>
__device__ __forceinline__ float2 head_sums(const S& smem, int head) {
  const float4* of_warp = reinterpret_cast<const float4*>(smem.sum_of_lanes[head][threadIdx.x % 8]);
  const float4 a = of_warp[0], b = of_warp[1];
  return make_float2(smem.max[head], lanes_sum<7>(((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w))));
}

// Chunks that each CTA of a cluster merges, but that the last ones may have fewer.
__device__ __forceinline__ int chunks_per_cta(int ctas) {  // without a division: it would be on the way to the digits
  return ctas >= 16 ? 1 : ctas >= 8 ? 2 : ctas >= 6 ? 3 : ctas >= 4 ? 4 : ctas >= 3 ? 6 : 8;
}

// Initialises the barriers of a CTA, by one thread.
template <int kHeads, int kRuns, bool kCluster, typename S>
__device__ __forceinline__ void initialise_barriers(const Task& task, S& smem) {
#pragma unroll
  for (int slot = 0; slot < slots(kRuns); ++slot) {
    mbarrier_init(shared_address(&smem.there[slot]), kGather);
    mbarrier_init(shared_address(&smem.free[slot]), arrivals(kCompute, 32));
  }
  mbarrier_init(shared_address(&smem.sums_there), arrivals(kCompute, kCompute));
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

// The entry of a list that this thread asks for, of each run, so that its warp has those that it needs: lanes i and
// i + 16 of compute warp w candidate 16w + i; lane i of gather warp w every eighth from 2w + i % 2 on, the (i / 2)th.
__device__ __forceinline__ int entry_of_thread() {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  return warp < kComputeWarps ? 16 * warp + lane % 16 : 2 * (warp - kComputeWarps) + lane % 2 + lane / 2 * 8;
}

// Those of a step that begins `begin` candidates on; -1 past the end. Volatile, to be asked for right here.
template <int kRuns>
__device__ __forceinline__ void load_entries(int (&entry)[kRuns], const int* list, int count, int begin) {
  const int first = begin + entry_of_thread();
#pragma unroll
  for (int run = 0; run < kRuns; ++run)
    asm volatile("{ .reg .pred p;\n setp.lt.s32 p, %2, %3;\n mov.s32 %0, -1;\n @p ld.global.nc.s32 %0, [%1]; }"
                 : "=&r"(entry[run])
                 : "l"(list + first + kRun * run), "r"(first + kRun * run), "r"(count));
}

constexpr int kRows = kRun / 8;    // of a run, for each gather thread
constexpr int kHalf = 128 * kRun;  // bytes of K of a run: half of the channels

// Whose turn it is in a ring.
struct Turn {
  int slot = 0, round = 0;

  template <int kSlots>
  __device__ __forceinline__ Turn after(int turns) const {  // at most kSlots
    return slot + turns < kSlots ? Turn{slot + turns, round} : Turn{slot + turns - kSlots, round + 1};
  }
};

// Copies 16 bytes of row `position` of a cache head, from `column` on; zeros if the position is no candidate's.
__device__ __forceinline__ void copy_row(unsigned target, const Code* column, int position, int context) {
  asm volatile(
      "{ .reg .pred none;\n .reg .b64 row;\n setp.ge.u32 none, %2, %3;\n mad.wide.u32 row, %2, %4, %1;\n"
      "cp.async.cg.shared.global [%0], [row], 16, none; }" ::"r"(target),
      "l"(column), "r"(position), "r"(context), "n"(kHeadSize)
      : "memory");
}

// A gather thread: 16 bytes of every eighth row of each run's K and V; none of a row that is no candidate's.
template <int kHeads, int kRuns, bool kCluster, typename S>
__device__ __forceinline__ void gather(const Task& task, S& smem, int (&entry)[kRuns]) {
  const int thread = threadIdx.x - kCompute, chunk = thread % 16, first = thread / 16, lane = thread % 32;
  if (thread == 0) initialise_barriers<kHeads, kRuns, kCluster>(task, smem);
  const Code* key = task.key + 16 * chunk;
  const Code* value = task.value + 16 * chunk;
  const unsigned ring = shared_address(smem.slot);
  const int key_target = kHalf * (chunk / 8) + 128 * first + 16 * (chunk % 8 ^ first);
  const int value_target = kHeadSize * first + 16 * (chunk ^ first);
  named_sync<kGatherBarrier, kGather>();  // the mbarriers are initialised
  if (thread < 32) named_arrive<kReadyBarrier, kCompute + 32>();
  if constexpr (kCluster) cluster_arrive();
  Turn turn;
#pragma unroll 1
  for (int begin = 0; begin < task.count; begin += kRuns * kRun) {
    int position[kRuns][kRows];
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      if (begin + kRun * run >= task.count) break;
#pragma unroll
      for (int n = 0; n < kRows; ++n) position[run][n] = __shfl_sync(0xffffffffu, entry[run], 2 * n + lane / 16);
      if (turn.round > 0) mbarrier_wait(shared_address(&smem.free[turn.slot]), (turn.round - 1) % 2);
#pragma unroll
      for (int n = 0; n < kRows; ++n)
        copy_row(ring + turn.slot * sizeof(smem.slot[0]) + key_target + 1024 * n, key, position[run][n], task.context);
      mbarrier_arrive_copied(shared_address(&smem.there[turn.slot]));
      turn = turn.after<slots(kRuns)>(1);
    }
    load_entries(entry, task.selected, task.count, begin + kRuns * kRun);
#pragma unroll
    for (int run = 0; run < kRuns; ++run) {
      if (begin + kRun * run >= task.count) break;
      if (turn.round > 0) mbarrier_wait(shared_address(&smem.free[turn.slot]), (turn.round - 1) % 2);
#pragma unroll
      for (int n = 0; n < kRows; ++n)
        copy_row(ring + turn.slot * sizeof(smem.slot[0]) + value_target + 2048 * n, value, position[run][n],
                 task.context);
      mbarrier_arrive_copied(shared_address(&smem.there[turn.slot]));
      turn = turn.after<slots(kRuns)>(1);
    }
  }
}

// The gather warps of a cluster, once all is copied: m and l of each head to all its CTAs.
template <int kHeads, typename S>
__device__ __forceinline__ void send_heads(const Task& task, S& smem) {
  auto& inbox = smem.inbox;
  const int head = min(static_cast<int>(threadIdx.x - kCompute) / 8, 4 * kHeads - 1), first = threadIdx.x % 8;
  cluster_wait();  // the mbarriers of every CTA are initialised
  const unsigned mine = shared_address(&inbox.head[head][task.split]), there = shared_address(&inbox.heads_there);
  mbarrier_wait(shared_address(&smem.sums_there), 0);
  const float2 m_l = head_sums(smem, head);
  if (threadIdx.x - kCompute < 32 * kHeads)
#pragma unroll
    for (int to = first; to < kMaxCluster; to += 8)
      if (to < task.splits) cluster_store(cluster_address(mine, to), cluster_address(there, to), m_l);
}

// --- merging, by pieces: 4 channels of a head ------------------------------------------------------------------------

// What each split's partial counts for one head, and l: lane i of 8 has m and l of splits i, i + 8 and so on. On path 0
// exp(m - M); on path 1 its square root.
template <Path kPath, int kPer>
__device__ __forceinline__ float weigh(const float2 (&m_l)[kPer], float unit, float (&weight)[kPer]) {
  float m = m_l[0].x;
#pragma unroll
  for (int n = 1; n < kPer; ++n) m = fmaxf(m, m_l[n].x);
  m = lanes_max<7>(m);
  float l = 0.f;
#pragma unroll
  for (int n = 0; n < kPer; ++n) {
    const float below = m_l[n].x == m ? 0.f : (m_l[n].x - m) * unit;  // also if the unit is NaN
    weight[n] = ex2(kPath == kWidePath ? 0.5f * below : below);
    l += m_l[n].y * weight[n] * (kPath == kWidePath ? weight[n] : 1.f);
  }
  l = lanes_sum<7>(l);
  return kPath == kWidePath || l == 0.f ? l : __fdividef(1.f, l);
}

template <Path kPath>
__device__ __forceinline__ void add(float4& sum, float w, float4 x) {
  const float factor = kPath == kWidePath ? w : 1.f;
  sum.x = fmaf(w, x.x * factor, sum.x);
  sum.y = fmaf(w, x.y * factor, sum.y);
  sum.z = fmaf(w, x.z * factor, sum.z);
  sum.w = fmaf(w, x.w * factor, sum.w);
}

template <int kHeads>
__device__ __forceinline__ int head_of(int chunk, int piece) {
  return 2 * kHeads * (chunk % 2) + piece / 8;
}

// acc / l * value_scale. On path 0 `l` is 1 / l, or 0; path 1 has no intermediate result that is out of range although
// it is not.
template <Path kPath>
__device__ __forceinline__ float divided(float acc, float l, float value_scale) {
  if constexpr (kPath == kInteger) return acc * l * value_scale;
  if (l == 0.f) return 0.f;
  return fabsf(value_scale) < 1.f ? acc / l * value_scale : value_scale / l * acc;
}

// The piece of a chunk, to out.
template <Path kPath, int kHeads, typename S>
__device__ __forceinline__ void store(const Task& task, const S& smem, int chunk, int piece, float4 x, float l) {
  const int head = head_of<kHeads>(chunk, piece), channel = 32 * (chunk / 2) + 2 * (piece % 8);
  if (head >= task.heads) return;
  __nv_bfloat162* out = reinterpret_cast<__nv_bfloat162*>(task.out + head * kHeadSize + channel);
  const float2 low = *reinterpret_cast<const float2*>(&smem.value_scale[channel]);
  const float2 high = *reinterpret_cast<const float2*>(&smem.value_scale[channel + 16]);
  out[0] = __floats2bfloat162_rn(divided<kPath>(x.x, l, low.x), divided<kPath>(x.y, l, low.y));
  out[8] = __floats2bfloat162_rn(divided<kPath>(x.z, l, high.x), divided<kPath>(x.w, l, high.y));
}

// The gather warps: this CTA's share of what its cluster has sent, weighed while the compute warps multiply.
template <Path kPath, int kHeads, typename S>
__device__ __forceinline__ void merge_cluster(const Task& task, S& smem) {
  constexpr int kPieces = 16 * kHeads;  // of a chunk
  auto& inbox = smem.inbox;
  const int first = task.split * chunks_per_cta(task.splits), thread = threadIdx.x - kCompute, lane = thread % 8;
  const int pieces = kPieces * min(chunks_per_cta(task.splits), kChunks - first);
  mbarrier_wait_cluster(shared_address(&inbox.heads_there), 0);
  if (thread < 32 * kHeads) {  // 8 lanes a head
    const int head = thread / 8;
    float2 m_l[2];
    float weight[2];
#pragma unroll
    for (int n = 0; n < 2; ++n)
      m_l[n] = lane + 8 * n < task.splits ? inbox.head[head][lane + 8 * n] : make_float2(kNone, 0.f);
    const float l = weigh<kPath>(m_l, smem.unit[head], weight);
#pragma unroll
    for (int n = 0; n < 2; ++n) inbox.weight[head][lane + 8 * n] = weight[n];
    if (lane == 0) smem.sum[head] = l;
  }
  named_sync<kGatherBarrier, kGather>();  // the weights are published
  for (int i = thread; i < pieces; i += kGather) {
    const int chunk = i / kPieces, piece = i % kPieces, head = head_of<kHeads>(first + chunk, piece);
    const float4* from = reinterpret_cast<const float4*>(inbox.chunk[chunk * task.splits]) + piece;
    float weight[kMaxCluster];
#pragma unroll
    for (int n = 0; n < kMaxCluster / 4; ++n)
      reinterpret_cast<float4*>(weight)[n] = reinterpret_cast<const float4*>(inbox.weight[head])[n];
    const float l = smem.sum[head];
    mbarrier_wait_cluster(shared_address(&inbox.chunks_there), 0);  // after the loads, which come from here
    float4 sum = {};
#pragma unroll
    for (int split = 0; split < kMaxCluster; ++split)
      if (split < task.splits) add<kPath>(sum, weight[split], from[split * kPieces]);
    store<kPath, kHeads>(task, smem, first + chunk, piece, sum, l);
  }
}

// Of this CTA in the grid. The splits of a row follow each other.
__device__ __forceinline__ unsigned cta_index() {
  return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
}

// A gather thread's part of a merge through mailboxes. A line is the pieces of a head in a chunk, 128 bytes of each
// split. A team of 8 threads takes it over up to 8 splits that follow each other, and 1, 2 or 4 teams of a warp
// together over all.
template <int kHeads>
struct Share {
  static constexpr int kLines = kChunks * 2 * kHeads;
  static constexpr int kSplits = 8;  // of a team
  int part, parts;                   // which of a line's teams this is
  int each;                          // lines of a CTA, but that the last ones may have fewer
  int line, end, step;               // this team's first line, the end of this CTA's, and how far on the next one is
  int wanted;                        // splits of this team, unless negative
  float2* to;                        // m and l for the first of the CTAs that this thread tells
  const float2* sums;                // m and l for this CTA, from the first of the splits that this thread asks
  float4* pieces;                    // of line 0, from the first split of this team

  __device__ __forceinline__ explicit Share(const Task& task) {
    const int thread = threadIdx.x - kCompute, team = thread / 8, lane = thread % 8, splits = task.splits;
    const int spread = splits > 2 * kSplits ? 2 : splits > kSplits ? 1 : 0;
    each = (kLines + splits - 1) / splits;
    parts = 1 << spread;
    part = team & parts - 1;
    line = task.split * each + (team >> spread);
    end = min((task.split + 1) * each, kLines);
    step = kGather / 8 >> spread;
    wanted = min(splits - kSplits * part, kSplits);
    const unsigned cta = cta_index(), first = cta - task.split;
    to = task.sums + (((first + lane) * splits + task.split) * (4 * kHeads) + team);
    sums = task.sums + (cta * splits + lane) * (4 * kHeads);
    pieces = task.pieces + ((first + kSplits * part) * (8 * kLines) + lane);
  }

  // Whether the CTA of a split takes a line of this head, and so looks for m and l of it.
  __device__ __forceinline__ bool is_asked_for(int head, int split) const {
    const int first = split * each;  // below 2 * kLines. The head of a line is its remainder
    return (head + 2 * kLines - first) % (4 * kHeads) < min(each, kLines - first);
  }
};

// The gather warps: this CTA's share of the lines.
template <Path kPath, int kHeads, typename S>
__device__ __forceinline__ void merge_share(const Task& task, S& smem, const Share<kHeads>& share) {
  constexpr int kPer = kMaxSplits / 8, kSplits = Share<kHeads>::kSplits, kStride = 8 * Share<kHeads>::kLines;
  const int lane = threadIdx.x % 8;
  const float empty = __uint_as_float(kEmpty);
#pragma unroll 1
  for (int line = share.line; __any_sync(0xffffffffu, line < share.end); line += share.step) {
    const bool mine = line < share.end;
    const int chunk = line / (2 * kHeads), piece = line % (2 * kHeads) * 8 + lane, head = head_of<kHeads>(chunk, piece);
    float2 m_l[kPer];
    float4 x[kSplits];
    float weight[kPer];
#pragma unroll
    for (int n = 0; n < kPer; ++n)
      m_l[n] = mine && lane + 8 * n < task.splits ? make_float2(empty, empty) : make_float2(kNone, 0.f);
    float4* pieces = share.pieces + 8 * line;
    const int wanted = mine ? share.wanted : 0;
#pragma unroll
    for (int n = 0; n < kSplits; ++n)
      x[n] = n < wanted ? make_float4(empty, empty, empty, empty) : make_float4(0.f, 0.f, 0.f, 0.f);
    bool missing;
    do {  // pieces that are there already come with m and l
      missing = look(m_l, share.sums + head, 8 * 4 * kHeads);
      look(x, pieces, kStride);
    } while (missing);
    const float l = weigh<kPath>(m_l, smem.unit[head], weight);
    float of_part = weight[0];
#pragma unroll
    for (int n = 1; n < kPer; ++n) of_part = share.part == n ? weight[n] : of_part;
    while (look(x, pieces, kStride)) continue;
    float4 sum = {};
#pragma unroll
    for (int n = 0; n < kSplits; ++n) add<kPath>(sum, __shfl_sync(0xffffffffu, of_part, n, 8), x[n]);
    for (int lanes = 8; lanes < 8 * share.parts; lanes *= 2) {
      sum.x += __shfl_xor_sync(0xffffffffu, sum.x, lanes);
      sum.y += __shfl_xor_sync(0xffffffffu, sum.y, lanes);
      sum.z += __shfl_xor_sync(0xffffffffu, sum.z, lanes);
      sum.w += __shfl_xor_sync(0xffffffffu, sum.w, lanes);
    }
    if (mine && share.part == 0) store<kPath, kHeads>(task, smem, chunk, piece, sum, l);
#pragma unroll
    for (int n = 0; n < kSplits; ++n)
      if (n < wanted) leave(pieces + n * kStride, make_float4(empty, empty, empty, empty));
  }
  named_sync<kGatherBarrier, kGather>();  // all teams have seen m and l: all that was left for this CTA
  float4* sums = reinterpret_cast<float4*>(task.sums + cta_index() * task.splits * (4 * kHeads));
#pragma unroll 1
  for (int i = threadIdx.x - kCompute; i < task.splits * 2 * kHeads; i += kGather)
    leave(sums + i, make_float4(empty, empty, empty, empty));
}

// The gather warps without a cluster, once all is copied. Nobody is left what it does not look for: that could come
// after its place was emptied.
template <int kHeads, typename S>
__device__ __forceinline__ void exchange(const Task& task, S& smem) {
  const int thread = threadIdx.x - kCompute, head = min(thread / 8, 4 * kHeads - 1);
  const Share<kHeads> share(task);
  mbarrier_wait(shared_address(&smem.sums_there), 0);
  const float2 m_l = head_sums(smem, head);
#pragma unroll
  for (int n = 0; n < kMaxSplits / 8; ++n) {
    const int to = thread % 8 + 8 * n;
    if (thread < 32 * kHeads && to < task.splits && share.is_asked_for(head, to))
      leave(share.to + n * 8 * task.splits * (4 * kHeads), m_l);
  }
  if (smem.wide)
    merge_share<kWidePath, kHeads>(task, smem, share);
  else
    merge_share<kInteger, kHeads>(task, smem, share);
}

// The compute warps of one CTA at work.
template <int kHeads, int kRuns, bool kCluster>
class Attention {
 public:
  using S = Smem<kHeads, kRuns, kCluster>;

  __device__ __forceinline__ Attention(const Task& task, S& smem, int (&entry)[kRuns])
      : task_(task),
        smem_(smem),
        tid_(threadIdx.x),
        warp_(__shfl_sync(0xffffffffu, threadIdx.x / 32, 0)),  // so that it is known to be the same in a warp
        lane_(threadIdx.x % 32),
        entry_(entry) {
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
    uint4 q = load_query(warp_), next = load_query(warp_ + kComputeWarps);
    float key_scale[8];
    const float4* scales = reinterpret_cast<const float4*>(task_.key_scale) + 2 * lane_;
    *reinterpret_cast<float4*>(key_scale) = __ldg(scales);
    *reinterpret_cast<float4*>(key_scale + 4) = __ldg(scales + 1);
    const float value_scale = __ldg(task_.value_scale + tid_);
    named_sync<kReadyBarrier, kCompute + 32>();  // the mbarriers are initialised
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

  template <Path kPath>
  __device__ __forceinline__ void pass() {
    float wide_acc[kPath == kWidePath ? 4 * kHeads : 1] = {};
#pragma unroll 1
    for (int begin = 0; begin < task_.count; begin += kRuns * kRun) {
      const int runs = min((task_.count - begin + kRun - 1) / kRun, kRuns);
      const bool last = begin + kRuns * kRun >= task_.count;
      bool valid[kRuns][2];
#pragma unroll
      for (int run = 0; run < kRuns; ++run)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          valid[run][e] =
              candidate_or_none(__shfl_sync(0xffffffffu, entry_[run], lane_ / 4 + 8 * e), task_.context) >= 0;
      load_entries(entry_, task_.selected, task_.count, begin + kRuns * kRun);

      float x[kRuns][2][kHeads] = {};
      scores<kRuns>(runs, x);
#pragma unroll
      for (int run = 0; run < kRuns; ++run)
#pragma unroll
        for (int j = 0; j < kHeads; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) x[run][e][j] = valid[run][e] ? x[run][e][j] : kNone;
#pragma unroll
      for (int j = 0; j < kHeads; ++j) {
        float of_warp = kNone;
#pragma unroll
        for (int run = 0; run < kRuns; ++run) of_warp = fmaxf(of_warp, fmaxf(x[run][0][j], x[run][1][j]));
        of_warp = lanes_max<28>(of_warp);
        if (lane_ < 4) smem_.max_of_warp[kHeads * lane_ + j][warp_] = of_warp;
      }
      // The maxima are published, and everyone is done with P of the last step.
      named_sync<kComputeBarrier, kCompute>();
      if constexpr (kPath == kWidePath)
        wide_probabilities(x, valid);
      else
        probabilities<kRuns>(runs, x, valid);
      if (last) publish_sums();
      named_sync<kComputeBarrier, kCompute>();  // P is published, and m and l after the last step
      if (last) arrive_as_one(shared_address(&smem_.sums_there), tid_ == 0);
      if constexpr (kPath == kWidePath)
        wide_weighted_values(runs, wide_acc);
      else
        weighted_values<kRuns>(runs);
      turn_ = turn_.after<slots(kRuns)>(runs).template after<slots(kRuns)>(runs);
    }
    if (task_.count <= 0) {  // a split without tiles
      publish_sums();
      named_sync<kComputeBarrier, kCompute>();
      arrive_as_one(shared_address(&smem_.sums_there), tid_ == 0);
    }
    if constexpr (kCluster) cluster_wait();  // the mbarriers of every CTA are initialised
    if constexpr (kPath == kWidePath)
      send_wide(wide_acc);
    else
      send();
  }

  // A step in three parts, each with its number of runs as a constant, which is at most kCount.

  // x[run][e][j]: candidate 16w + g + 8e of one of so many runs, head kHeads * t + j, in units of X times a code. Frees
  // K on the way.
  template <int kCount>
  __device__ __forceinline__ void scores(int runs, float (&x)[kRuns][2][kHeads]) {
    if constexpr (kCount > 1) {
      if (runs < kCount) return scores<kCount - 1>(runs, x);
    }
    int sum[kCount][8 * kHeads];  // [n-tile of 8 columns][candidate g, g + 8][column 2t, 2t + 1]
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#pragma unroll
    for (int run = 0; run < kCount; ++run) {
      const unsigned char* key = wait_for(run);
      fence_for_async();
      __syncwarp();
      static_assert(kHalf == kWgmmaHalf);
      wgmma_256(sum[run], wgmma_operand(shared_address(key + 64 * 128 * (warp_ / 4))),
                wgmma_operand(shared_address(&smem_.digit[0][0][0])));
    }
#pragma unroll
    for (int run = 0; run < kCount; ++run) {
      if (run == kCount - 1)
        wgmma_wait<0>();
      else if (run == kCount - 2)
        wgmma_wait<1>();
      else
        wgmma_wait<2>();
      wgmma_done(sum[run]);
      release(run);
      combine(sum[run], x[run]);
    }
#else
#pragma unroll
    for (int run = 0; run < kCount; ++run) {
      const unsigned char* key = wait_for(run);
#pragma unroll
      for (int n = 0; n < 8 * kHeads; ++n) sum[run][n] = 0;
      const int row = 16 * warp_ + lane_ % 16, column = lane_ % 8;
#pragma unroll
      for (int k = 0; k < kHeadSize / 64; ++k) {
        const int half = k / 2;
        unsigned codes[2][4];
#pragma unroll
        for (int step = 0; step < 2; ++step)
          ldmatrix_x4(codes[step], shared_address(key + kHalf * half + 128 * row +
                                                  16 * (4 * (k % 2) + 2 * step + lane_ / 16 ^ row % 8)));
#pragma unroll
        for (int n = 0; n < 2 * kHeads; ++n) {
          unsigned digit[4];
          ldmatrix_x4(digit,
                      shared_address(&smem_.digit[half][8 * n + column][16 * (4 * (k % 2) + lane_ / 8 ^ column)]));
          int (&c)[4] = reinterpret_cast<int (&)[4]>(sum[run][4 * n]);
          mma_m16n8k32(c, codes[0], digit[0], digit[1]);
          mma_m16n8k32(c, codes[1], digit[2], digit[3]);
        }
      }
      release(run);
      combine(sum[run], x[run]);
    }
#endif
  }

  // The slot that was filled as this step's nth, once it is.
  __device__ __forceinline__ const unsigned char* wait_for(int n) const {
    const Turn turn = turn_.after<slots(kRuns)>(n);
    mbarrier_wait(shared_address(&smem_.there[turn.slot]), turn.round % 2);
    return reinterpret_cast<const unsigned char*>(smem_.slot[turn.slot]);
  }

  // This warp has read it.
  __device__ __forceinline__ void release(int n) const {
    __syncwarp();
    arrive_as_one(shared_address(&smem_.free[turn_.after<slots(kRuns)>(n).slot]), lane_ == 0);
  }

  __device__ __forceinline__ static void combine(const int (&sum)[8 * kHeads], float (&x)[2][kHeads]) {
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
  template <int kCount>
  __device__ __forceinline__ void probabilities(int runs, const float (&x)[kRuns][2][kHeads],
                                                const bool (&valid)[kRuns][2]) {
    if constexpr (kCount > 1) {
      if (runs < kCount) return probabilities<kCount - 1>(runs, x, valid);
    }
    int lane = lane_;
    asm volatile("" : "+r"(lane));  // so that no address is kept over the steps: there are not enough registers
#pragma unroll
    for (int j = 0; j < kHeads; ++j) {
      const float m = raised_max(j);
      const float rescale = max_[j] == m ? 1.f : ex2((max_[j] - m) * unit_[j]);
      max_[j] = m;
      sum_[j] *= rescale;
#pragma unroll
      for (int n = 0; n < 4; ++n) acc_[n / 2][j][n % 2] *= rescale;
    }
#pragma unroll
    for (int run = 0; run < kCount; ++run) {
#pragma unroll
      for (int j = 0; j < kHeads; ++j) {
        unsigned p[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          // The factor on the result: 32 added to the exponent would take five bits of it.
          const float y = valid[run][e] ? ex2((x[run][e][j] - max_[j]) * unit_[j]) * kInteger32 : 0.f;
          sum_[j] += y;
          p[e] = __float2uint_rn(y);  // 2^32 becomes 2^32 - 1
        }
        // Candidates g and g + 8 side by side.
#pragma unroll
        for (int d = 0; d < kDigits; ++d) {  // the most significant first
          const int column = 8 * (2 * j + d / 2) + 2 * (lane % 4) + d % 2;
          *reinterpret_cast<unsigned short*>(
              &smem_.probability[run][column][16 * (warp_ ^ column % 8) + 2 * (lane / 4)]) =
              static_cast<unsigned short>(__byte_perm(p[0], p[1], 3 - d | (7 - d) << 4));
        }
      }
    }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    fence_for_async();
#endif
  }

  // Path 1: as above, with P in FP32 times 2^100, and the rescaling of acc left to its owners.
  __device__ __forceinline__ void wide_probabilities(const float (&x)[kRuns][2][kHeads],
                                                     const bool (&valid)[kRuns][2]) {
#pragma unroll
    for (int j = 0; j < kHeads; ++j) {
      const float m = raised_max(j);
      const float root = max_[j] == m ? 1.f : ex2((max_[j] - m) * (0.5f * unit_[j]));
      if (warp_ == 0 && lane_ < 4) smem_.rescale[kHeads * lane_ + j] = root;
      max_[j] = m;
      sum_[j] = sum_[j] * root * root;
#pragma unroll
      for (int run = 0; run < kRuns; ++run)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float t = (x[run][e][j] - m) * unit_[j];
          const bool near = t >= -kWideExponent;  // false for NaN
          const float y = ex2_subnormal(near ? t : t + kWideExponent) * (near ? kWide : 1.f);
          const float p = valid[run][e] ? y : 0.f;
          sum_[j] += p;
          smem_.wide_probability[kRun * run + 16 * warp_ + lane_ / 4 + 8 * e][kHeads * (lane_ % 4) + j] = p;
        }
    }
  }

  // The number with these digits, the most significant first, |d| < 0.75 * 2^24: rounded to FP32 without its last 8
  // bits, and again with them, which a tail behind a sink needs.
  __device__ __forceinline__ static float combine_large(int d0, int d1, int d2, int d3) {
    const int high = d0 + (d1 >> 8), low = ((d1 & 255) << 8) + d2 + (d3 >> 8);  // both exact as floats
    const float last = __int_as_float(0x4b000000 | (d3 & 255)) - 8388608.f;
    return fmaf(fmaf(static_cast<float>(high), 65536.f, static_cast<float>(low)), 256.f, last);
  }

  // A thread's codes of candidates [32 * part, 32 * part + 32) of a run as the operand of a product with P: channels 2g
  // and 2g + 1 of candidates 2t and 2t + 1 from each of four matrices of 8 candidates; in the order of P's columns,
  // those of the first two matrices alternate.
  __device__ __forceinline__ void load_values(unsigned (&a)[4], const unsigned char* value, int part, int block) const {
    unsigned codes[4];
    ldmatrix_x4_trans(codes,
                      shared_address(value + kHeadSize * (32 * part + lane_) + 16 * (2 * warp_ + block ^ lane_ % 8)));
    a[0] = __byte_perm(codes[0], codes[1], 0x6240);
    a[1] = __byte_perm(codes[0], codes[1], 0x7351);
    a[2] = __byte_perm(codes[2], codes[3], 0x6240);
    a[3] = __byte_perm(codes[2], codes[3], 0x7351);
  }

  // acc += P * V over so many runs, for this warp's 32 channels: as rows 2g and 2g + 1 of two blocks of 16, columns the
  // digits of heads. Frees V on the way.
  template <int kCount>
  __device__ __forceinline__ void weighted_values(int runs) {
    if constexpr (kCount > 1) {
      if (runs < kCount) return weighted_values<kCount - 1>(runs);
    }
    constexpr int kParts = kRun / 32;
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    int sum[2][8 * kHeads];
    unsigned a[2][2][2][4];  // [of every other 64 candidates][half of them][block]
    const unsigned char* value = nullptr;
#pragma unroll
    for (int n = 0; n < kCount * kParts / 2; ++n) {
      const int run = n / (kParts / 2), part = 2 * (n % (kParts / 2));
      if (part == 0) value = wait_for(kCount + run);
      if (n >= 2) wgmma_wait<1>();  // the products of a
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int block = 0; block < 2; ++block) load_values(a[n % 2][half][block], value, part + half, block);
      const unsigned long long p = wgmma_operand(shared_address(&smem_.probability[run][0][0])) + 2 * part;
      wgmma_begin();
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int block = 0; block < 2; ++block)
          if (n == 0 && half == 0)
            wgmma_32(sum[block], a[0][0][block], p);
          else
            wgmma_add_32(sum[block], a[n % 2][half][block], p + 2 * half);
      wgmma_commit();
    }
    wgmma_wait<0>();
    wgmma_done(sum[0]);
    wgmma_done(sum[1]);
#else
    int sum[2][8 * kHeads] = {};
#pragma unroll
    for (int run = 0; run < kCount; ++run) {
      const unsigned char* value = wait_for(kCount + run);
#pragma unroll
      for (int k = 0; k < kParts / 2; ++k) {
        unsigned p[2 * kHeads][4];
        const int column = lane_ % 8;
#pragma unroll
        for (int n = 0; n < 2 * kHeads; ++n)
          ldmatrix_x4(p[n], shared_address(&smem_.probability[run][8 * n + column][16 * (4 * k + lane_ / 8 ^ column)]));
#pragma unroll
        for (int part = 0; part < 2; ++part)
#pragma unroll
          for (int block = 0; block < 2; ++block) {
            unsigned a[4];
            load_values(a, value, 2 * k + part, block);
#pragma unroll
            for (int n = 0; n < 2 * kHeads; ++n)
              mma_s8_u8_m16n8k32(reinterpret_cast<int (&)[4]>(sum[block][4 * n]), a, p[n][2 * part],
                                 p[n][2 * part + 1]);
          }
      }
    }
#endif
#pragma unroll
    for (int run = 0; run < kCount; ++run) release(kCount + run);
#pragma unroll
    for (int block = 0; block < 2; ++block)
#pragma unroll
      for (int j = 0; j < kHeads; ++j)
#pragma unroll
        for (int d = 0; d < 2; ++d) {
          const int* digit = &sum[block][8 * j + 2 * d];
          if constexpr (kCount < 3)
            acc_[block][j][d] += int8_tc::combine_digits(digit[0], digit[1], digit[4], digit[5]);
          else
            acc_[block][j][d] += combine_large(digit[0], digit[1], digit[4], digit[5]);
        }
  }

  // Path 1: acc += P * V for channel `tid` and all heads.
  __device__ __forceinline__ void wide_weighted_values(int runs, float (&acc)[4 * kHeads]) {
#pragma unroll
    for (int head = 0; head < 4 * kHeads; ++head) acc[head] = acc[head] * smem_.rescale[head] * smem_.rescale[head];
#pragma unroll 1
    for (int run = 0; run < runs; ++run) {
      const Code* value = reinterpret_cast<const Code*>(wait_for(runs + run));
#pragma unroll 4
      for (int row = 0; row < kRun; ++row) {
        const float v = value[kHeadSize * row + 16 * (tid_ / 16 ^ row % 8) + tid_ % 16];
#pragma unroll
        for (int head = 0; head < 4 * kHeads; ++head)
          acc[head] = fmaf(smem_.wide_probability[kRun * run + row][head], v, acc[head]);
      }
      release(runs + run);
    }
  }

  // m, and l of this thread's candidates, for whoever sends them.
  __device__ __forceinline__ void publish_sums() {
#pragma unroll
    for (int j = 0; j < kHeads; ++j) {
      smem_.sum_of_lanes[kHeads * (lane_ % 4) + j][warp_][lane_ / 4] = sum_[j];
      if (warp_ == 0 && lane_ < 4) smem_.max[kHeads * lane_ + j] = max_[j];
    }
  }

  // --- to whoever merges ---------------------------------------------------------------------------------------------

  // Where this CTA's part of a chunk goes in a cluster.
  struct Target {
    unsigned target, barrier;
  };

  __device__ __forceinline__ Target inbox_of(int chunk) const {
    const int each = chunks_per_cta(task_.splits);
    int to = 0, rest = chunk;
    for (; rest >= each; rest -= each) ++to;
    auto& inbox = smem_.inbox;
    return {cluster_address(shared_address(&inbox.chunk[rest * task_.splits + task_.split]), to),
            cluster_address(shared_address(&inbox.chunks_there), to)};
  }

  __device__ __forceinline__ float4* own_pieces() const { return task_.pieces + cta_index() * (64 * 4 * kHeads); }

  __device__ __forceinline__ void send() {
    const int t = lane_ % 4;
#pragma unroll
    for (int j = 0; j < kHeads; ++j) {
      const float4 x = make_float4(acc_[0][j][0], acc_[0][j][1], acc_[1][j][0], acc_[1][j][1]);
      const int at = 32 * (kHeads * (t % 2) + j) + 4 * (lane_ / 4);
      if constexpr (kCluster)
        cluster_store(own_chunk_.target + at * static_cast<int>(sizeof(float)), own_chunk_.barrier, x);
      else
        leave(own_pieces() + (2 * warp_ + t / 2) * (16 * kHeads) + at / 4, x);
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
        leave(reinterpret_cast<float*>(own_pieces()) + chunk * (64 * kHeads) + at, acc[head]);
      }
    }
  }

  const Task& task_;
  S& smem_;
  int tid_, warp_, lane_;
  Turn turn_;            // of the first run's K of a step
  int (&entry_)[kRuns];  // of the next step, as entry_of_thread has them
  float unit_[kHeads];
  float max_[kHeads], sum_[kHeads] = {};  // m, and l of this thread's candidates
  Target own_chunk_ = {};
  float acc_[2][kHeads][2] = {};  // path 0: [block of 16 channels][head][2g, 2g + 1]
};

// A CTA of threads that each do their part.
template <int kHeads, int kRuns, bool kCluster>
__device__ __forceinline__ void attend(const Task& task, int (&entry)[kRuns], int forced, unsigned* path_counts) {
  using S = Smem<kHeads, kRuns, kCluster>;
  extern __shared__ __align__(1024) unsigned char smem_bytes[];
  S& smem = *reinterpret_cast<S*>(smem_bytes);
  if (threadIdx.x >= kCompute) {
    gather<kHeads, kRuns, kCluster>(task, smem, entry);
    if constexpr (kCluster) {
      send_heads<kHeads>(task, smem);
      if (smem.wide)
        merge_cluster<kWidePath, kHeads>(task, smem);
      else
        merge_cluster<kInteger, kHeads>(task, smem);
    } else {
      exchange<kHeads>(task, smem);
    }
    return;
  }
  Attention<kHeads, kRuns, kCluster>(task, smem, entry).run(forced, path_counts);
}

}  // namespace digits
