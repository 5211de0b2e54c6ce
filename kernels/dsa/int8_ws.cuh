// SPDX-License-Identifier: MIT
// kernels/dsa/int8_ws.cuh - the body of prefill_int8_ws.cu, whose contract says what it computes and how: producers
// that gather a row's candidates, consumers that attend to them. Parts of it are those of prefill_int8_union.cu too.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "common/arrivals.cuh"
#include "common/barrier.cuh"
#include "common/ptx.cuh"
#include "common/softmax.cuh"
#include "common/wgmma_steps.cuh"
#include "dsa/int8_tc.cuh"

#ifndef INT8_WS_WGMMA
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define INT8_WS_WGMMA 1
#else
#define INT8_WS_WGMMA 0
#endif
#endif

namespace int8_ws {

using int8_tc::Channels;
using int8_tc::DigitScale;
using int8_tc::kAutomatic;
using int8_tc::kHeadSize;
using int8_tc::kMaxGroup;
using int8_tc::kMaxRise;
using int8_tc::kMaxScale;
using int8_tc::kQueryBudget;
using int8_tc::kTail;
using int8_tc::kTailScale;
using int8_tc::kTile;
using int8_tc::Task;

constexpr int kConsumers = 128;      // threads
constexpr int kRow = 128;            // bytes of a row of an operand of the products: half a head
constexpr int kColumns = 24;         // digits that have a place of their own: two of 12 heads
constexpr float kTop = 15.f;         // log2 of what the probability tile holds of the reference where tails are watched
constexpr float kHeadroom = 4.f;     // bits less of it elsewhere
constexpr float kLargest = 65504.f;  // that it may hold of a lane's two candidates together: FP16's largest number

// A score in units, of which two digits of the query have fewer.
template <int kDigits>
struct Units {
  using Type = long long;
  static constexpr Type kNone = -(1ll << 62);  // below every score
};
template <>
struct Units<2> {
  using Type = int;
  static constexpr Type kNone = -2147483647 - 1;
};

#if __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200
constexpr int kFewStages = 2;  // 99 KiB per CTA
#else
constexpr int kFewStages = 3;
#endif
constexpr int kResident = INT8_WS_WGMMA ? 3 : 2;  // with mma.sync, 128 registers would spill
constexpr int kResidentFew = 2;

enum Path : int { kTwo, kFour, kSingle, kPaths };

// Where a ring of copies is: its slot, and the parity of the barriers there.
struct Ring {
  int slot = 0;
  unsigned parity = 0;

  // Before each use, with the number of slots; ++slot follows it.
  __device__ __forceinline__ void enter(int slots) {
    if (slot == slots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

template <int kStages>
struct Layout {
  Code key[kStages][2][kTile][kRow];        // channels below 128, then the others; swizzled as wgmma_steps.cuh says
  Code value[kStages][kTile][kHeadSize];    // 16-byte chunk c of slot s is at c ^ (s % 8)
  Code digit[2][kColumns][kRow];            // as key; more columns take the last stage of value
  __half probability[2][kMaxGroup][kTile];  // [tile % 2][row of a head][slot], chunk c of row r at c ^ (r % 8)
  union {
    long long max_of_warp[kConsumers / 32][kMaxGroup];  // units
    float sum_of_warp[kConsumers / 32][kMaxGroup];
  };
  long long first_max[kMaxGroup];  // of the first tile with a candidate
  float to_log2[kMaxGroup];        // of a unit of a head's score
  unsigned valid[kStages][2];      // bit i of word w: entry 32w + i of the tile is a candidate
  unsigned long long key_full[kStages], key_empty[kStages], value_full[kStages], value_empty[kStages], decided;
  int path;
  bool met_tail;

  // Columns of digits beyond these take a stage of value.
  __device__ static constexpr bool takes_stage(int columns) { return columns > kColumns; }
  __device__ __forceinline__ Code* digits(int columns) {
    return takes_stage(columns) ? &value[kStages - 1][0][0] : &digit[0][0][0];
  }

  // Until what producers request before they know the path has landed.
  __device__ __forceinline__ void wait_for_first_copies(int tiles) {
    for (int tile = 0; tile < min(kStages - 1, tiles); ++tile) {
      mbarrier_wait(shared_address(&key_full[tile]), 0);
      mbarrier_wait(shared_address(&value_full[tile]), 0);
    }
  }
};
template <int kStages>
struct alignas(1024) Smem : Layout<kStages> {};
static_assert(sizeof(Smem<2>) <= 75 * 1024, "3 CTAs per sm_90 SM: 228 KiB / 3, less 1 KiB reserved each");
static_assert(sizeof(Smem<3>) <= 113 * 1024, "2 CTAs");
static_assert(sizeof(int8_tc::Smem<true>) <= sizeof(Smem<2>), "path single takes the same place");

// Slot s of 16 candidates is candidate s / 2 + 8 * (s % 2): a lane's two are neighbours.
__device__ __forceinline__ int candidate_of_slot(int slot) { return slot / 16 * 16 + slot % 16 / 2 + slot % 2 * 8; }

// Lanes of a consumer hold 3 heads each of a group of up to 12, else 4.
__device__ __forceinline__ int heads_per_lane(int group) { return group > 12 ? 4 : 3; }

__device__ constexpr int columns_of(int heads, int digits) { return 4 * heads * digits; }

// --- producers ------------------------------------------------------------------------------------------------------

// A producer's part of a slot of K or V: one 16-byte chunk of every second of kRows rows, of which the first is at
// `target`. The swizzle xors the chunk with 2i % 8 in row 2i of K; in V, with what candidate 2i has as a slot.
template <int kRows, int kRowBytes, bool kIsValue, bool kAllValid>
__device__ __forceinline__ void copy_rows(unsigned target, const Code* head, const int (&position)[kRows / 2]) {
#pragma unroll
  for (int i = 0; i < kRows / 2; ++i) {
    const int chunk = kIsValue ? 2 * i % 8 * 2 % 8 + 2 * i / 8 % 2 : 2 * i % 8;
    cp_async_16((target ^ 16 * chunk) + 2 * i * kRowBytes, cache_row(head, position[i], kHeadSize),
                kAllValid ? 0 : position[i]);
  }
}

// Copies the rows of each tile into the next free slots. Warp w of kWarps has rows [w * kRows, (w + 1) * kRows), a lane
// its chunk of rows 2i + lane / 16 of them.
template <int kStages, int kWarps>
__device__ __forceinline__ void produce(const Task& task, Smem<kStages>& smem) {
  constexpr int kRows = kTile / kWarps, kEntries = kRows / 32;
  const int lane = threadIdx.x % 32, first = kRows * (static_cast<int>(threadIdx.x - kConsumers) / 32);
  const int chunk = lane % 16, odd = lane / 16;
  const auto load = [&](int tile, int entry) {
    return load_entry(task.selected, tile * kTile + first + 32 * entry + lane, task.candidates);
  };
  int ahead[kEntries];
#pragma unroll
  for (int e = 0; e < kEntries; ++e) ahead[e] = load(0, e);

  const Code* key = task.key + 16 * chunk;
  const Code* value = task.value + 16 * chunk;
  asm("" : "+l"(key), "+l"(value));  // one sum each, or the compiler adds the parts to every row's address anew
  // Row 1 has chunk 1 of K in place of 0, and of V that of slot 2.
  const unsigned key_target = shared_address(&smem.key[0][chunk / 8][first + odd][16 * (chunk % 8 ^ odd)]);
  const unsigned value_target = shared_address(&smem.value[0][first + odd][16 * (chunk ^ 2 * odd)]);

  int value_slots = kStages;
  // Before the last stage of value is copied to. Whether tiles are needed.
  const auto learn_path = [&] {
    mbarrier_wait(shared_address(&smem.decided), 0);
    if (smem.takes_stage(columns_of(heads_per_lane(task.group), smem.path == kFour ? 4 : 2))) --value_slots;
    return smem.path != kSingle;
  };
  bool needed = true;
  Ring k, v;
  for (int tile = 0; tile < task.tile_end; ++tile) {
    if (tile == kStages - 1) needed = learn_path();
    if (!needed) break;
    int entry[kEntries], position[kRows / 2];
    unsigned valid[kEntries], any = 0, all = 0xffffffffu;
#pragma unroll
    for (int e = 0; e < kEntries; ++e) {
      entry[e] = candidate_or_none(ahead[e], task.context);
      valid[e] = __ballot_sync(0xffffffffu, entry[e] >= 0);
      any |= valid[e];
      all &= valid[e];
      ahead[e] = load(tile + 1, e);
    }
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) position[i] = __shfl_sync(0xffffffffu, entry[i / 16], i % 16 * 2 + odd);

    k.enter(kStages);
    const unsigned key_full = shared_address(&smem.key_full[k.slot]);
    mbarrier_wait(shared_address(&smem.key_empty[k.slot]), k.parity ^ 1);  // its scores are computed
    if (lane == 0) {
#pragma unroll
      for (int e = 0; e < kEntries; ++e) smem.valid[k.slot][first / 32 + e] = valid[e];
      mbarrier_arrive(key_full);
    }
    __syncwarp();
    const unsigned key_slot = key_target + k.slot * sizeof(smem.key[0]);
    if (all == 0xffffffffu)
      copy_rows<kRows, kRow, false, true>(key_slot, key, position);
    else if (any != 0)
      copy_rows<kRows, kRow, false, false>(key_slot, key, position);
    mbarrier_arrive_copied(key_full);

    v.enter(value_slots);
    const unsigned value_full = shared_address(&smem.value_full[v.slot]);
    mbarrier_wait(shared_address(&smem.value_empty[v.slot]), v.parity ^ 1);  // its products are added
    __syncwarp();
    const unsigned value_slot = value_target + v.slot * sizeof(smem.value[0]);
    if (all == 0xffffffffu)
      copy_rows<kRows, kHeadSize, true, true>(value_slot, value, position);
    else if (any != 0)
      copy_rows<kRows, kHeadSize, true, false>(value_slot, value, position);
    mbarrier_arrive_copied(value_full);
    ++k.slot;
    ++v.slot;
  }
  cp_async_commit();  // without a group of theirs, nothing would wait for the copies
  cp_async_wait<0>();
}

// --- consumers ------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void consumers_sync() { named_sync<1, kConsumers>(); }
__device__ __forceinline__ bool consumers_or(bool x) { return named_sync_or<1, kConsumers>(x); }

__device__ __forceinline__ unsigned bf16x2_bits(float x, float y) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
  return reinterpret_cast<const unsigned&>(pair);
}

// Whether a path of two digits may be taken, by its unit in nats. NaN may not.
__device__ __forceinline__ bool within_budget(float unit) { return unit * (0.5f * 128.f * kHeadSize) <= kQueryBudget; }

// q * key_scale in units of 1 / factor, below 2^15, rounded once: a lane's codes of each digit to store(digit, codes).
// False if key_scale * factor is beyond FP32.
template <typename F>
__device__ __forceinline__ bool fold_two(const Channels& c, float factor, F store) {
  // With 1.5 * 2^23 added, bits count units from 0x4b400000 on; with 128 more, the upper byte is that of units rounded.
  constexpr float kRound = 12582912.f + 128.f;
  unsigned word[8], largest = 0;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    word[n] = __float_as_uint(fmaf(c.q[n], c.key_scale[n] * factor, kRound));
    largest = max(largest, word[n]);
  }
  unsigned high[2], low[2];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const unsigned* w = word + 4 * n;
    const unsigned w01 = __byte_perm(w[0], w[1], 0x5140), w23 = __byte_perm(w[2], w[3], 0x5140);
    high[n] = __byte_perm(w01, w23, 0x7632);
    low[n] = __byte_perm(w01, w23, 0x5410) ^ 0x80808080u;  // 0 .. 255 less 128
  }
  store(0, make_uint2(high[0], high[1]));
  store(1, make_uint2(low[0], low[1]));
  return largest < 0x4b408000u;
}

// kHeads heads per lane; those past the group have a unit of 0.
template <int kStages, int kHeads>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const Task& task, Smem<kStages>& smem)
      : task_(task),
        smem_(smem),
        warp_(thread_index() / 32),
        lane_(thread_index() % 32),
        g_(lane_ / 4),
        t_(lane_ % 4) {}

  // Attends and writes to open_out(), [group, 256]. The path, kSingle if the CTA needs that: then
  // nothing is written.
  template <typename F>
  __device__ __forceinline__ int run(int forced, F open_out) {
    const int path = prologue(forced);
    if (path == kSingle) {
      smem_.wait_for_first_copies(task_.tile_end);
      return path;
    }
    if (path == kTwo)
      pass<2>();
    else
      pass<4>();
    return finish(open_out) ? smem_.path : kSingle;
  }

 private:
  static constexpr int kPairs = (kHeads + 1) / 2;

  // The score of a head, in units: 2^16 * upper + lower with four digits, upper with two.
  struct Score {
    int upper, lower;
  };

  template <int kDigits>
  using Sums = int[2 * kHeads * kDigits];

  // Which of a tile's entries are candidates.
  struct Candidates {
    unsigned of_lane;  // bits 0 and 8: this lane's candidates g and g + 8

    __device__ __forceinline__ bool has(int j) const { return (of_lane & (j == 0 ? 1 : 256)) != 0; }
  };

  // --- before the first tile ---------------------------------------------------------------------------------------

  // Warp w prepares heads [kHeads * w, kHeads * (w + 1)), lane i their channels [8i, 8i + 8). The path.
  __device__ __forceinline__ int prologue(int forced) {
    uint4 q[kHeads];
#pragma unroll
    for (int n = 0; n < kHeads; ++n) q[n] = load_query(kHeads * warp_ + n);
    float key_scale[8];
    const float4* scales = reinterpret_cast<const float4*>(task_.key_scale) + 2 * lane_;
    *reinterpret_cast<float4*>(key_scale) = __ldg(scales);
    *reinterpret_cast<float4*>(key_scale + 4) = __ldg(scales + 1);
    const float2 value_scale = __ldg(reinterpret_cast<const float2*>(task_.value_scale) + threadIdx.x);

    bool exceeds = false;
#pragma unroll
    for (int n = 0; n < kHeads; ++n) {
      const int head = kHeads * warp_ + n;
      Channels channels(q[n], key_scale);
      const DigitScale scale = scale_of(channels, head);
      const float unit = scale.unit * 65536.f;
      const bool fits = fold_two(channels, scale.factor * 0x1p-16f,
                                 [&](int digit, uint2 codes) { store_digit<2>(head, digit, codes); });
      exceeds |= !(within_budget(unit) && fits);
      if (lane_ == 0) smem_.to_log2[head] = unit * kLog2E;
    }
    const auto above = [&](float limit) { return !(fabsf(value_scale.x) <= limit && fabsf(value_scale.y) <= limit); };
    publish_to_products();
    int path = kTwo;
    if (consumers_or(exceeds || above(kTailScale) || forced > kTwo)) {  // the digits and units are published
      const bool four = consumers_or(exceeds), single = consumers_or(above(kMaxScale));
      watch_tail_ = consumers_or(above(kTailScale)) && forced == kAutomatic;
      path = forced != kAutomatic ? forced : single ? kSingle : four ? kFour : kTwo;
      if (path == kFour) {
#pragma unroll 1
        for (int head = kHeads * warp_; head < kHeads * (warp_ + 1); ++head) {
          Channels channels(load_query(head), key_scale);
          const DigitScale scale = scale_of(channels, head);
          fold_four(channels, scale.factor, head);
          if (lane_ == 0) smem_.to_log2[head] = scale.unit * kLog2E;
        }
        publish_to_products();
        consumers_sync();  // the four digits and their units are published
      }
    }
    if (threadIdx.x == 0) {
      smem_.path = path;
      mbarrier_arrive(shared_address(&smem_.decided));
    }
    return path;
  }

  __device__ __forceinline__ uint4 load_query(int head) const {
    return head < task_.group ? __ldg(reinterpret_cast<const uint4*>(task_.query + head * kHeadSize) + lane_)
                              : make_uint4(0, 0, 0, 0);
  }

  __device__ __forceinline__ DigitScale scale_of(Channels& channels, int head) const {
    const DigitScale scale = int8_tc::digit_scale(channels, task_.scale);
    return head < task_.group ? scale : DigitScale{0.f, 0.f};
  }

  __device__ __forceinline__ static void publish_to_products() {
#if INT8_WS_WGMMA
    fence_for_async();
#endif
  }

  template <int kDigits>
  static constexpr int kDigitColumns = columns_of(kHeads, kDigits);

  // One lane's 8 codes of a digit. Lane t of a quad gets all digits of its heads from columns 2t, 2t + 1, 8 + 2t, ..
  template <int kDigits>
  __device__ __forceinline__ void store_digit(int head, int digit, uint2 codes) {
    const int i = head % kHeads * kDigits + digit, column = i / 2 * 8 + head / kHeads * 2 + i % 2;
    Code* row = smem_.digits(kDigitColumns<kDigits>) + (lane_ / 16 * kDigitColumns<kDigits> + column) * kRow;
    *reinterpret_cast<uint2*>(row + 16 * (lane_ % 16 / 2 ^ column % 8) + 8 * (lane_ % 2)) = codes;
  }

  __device__ __forceinline__ void fold_four(const Channels& c, float factor, int head) {
    alignas(8) Code digit[4][8];
    int8_tc::fold_digits(c, factor, &digit[0][0], 8);
#pragma unroll
    for (int d = 0; d < 4; ++d) store_digit<4>(head, d, *reinterpret_cast<const uint2*>(digit[d]));
  }

  // --- the tiles ---------------------------------------------------------------------------------------------------

  template <int kDigits>
  __device__ __forceinline__ void pass() {
    Score reference[kHeads] = {};
    float to_log2[kHeads];
#pragma unroll
    for (int n = 0; n < kHeads; ++n) to_log2[n] = smem_.to_log2[kHeads * t_ + n];
    const float shift = watch_tail_ ? kTop : kTop - kHeadroom;
    bool waiting = true;  // no candidate was met
    Ring k, v;

    for (int tile = 0, buffer = 0; tile < task_.tile_end; ++tile) {
      k.enter(kStages);
      v.enter(kStages - smem_.takes_stage(kDigitColumns<kDigits>));
      mbarrier_wait(shared_address(&smem_.key_full[k.slot]), k.parity);  // K and `valid` have landed
      const void* valid = smem_.valid[k.slot];
      if (*static_cast<const unsigned long long*>(valid) == 0) {  // as early rows of a prompt have them
        mbarrier_wait(shared_address(&smem_.value_full[v.slot]), v.parity);
        release(smem_.key_empty[k.slot++]);
        release(smem_.value_empty[v.slot++]);
        continue;
      }
      const Candidates candidates{static_cast<unsigned>(static_cast<const unsigned short*>(valid)[warp_] >> g_)};
      publish_to_products();
      __syncwarp();
      Sums<kDigits> sum;
      begin_products<kDigits>(k.slot, sum);
      wait_for_products(sum);
      release(smem_.key_empty[k.slot++]);
      weigh<kDigits>(sum, candidates, buffer, shift, to_log2, waiting, reference);

      mbarrier_wait(shared_address(&smem_.value_full[v.slot]), v.parity);  // V has landed
      add_weighted_values(buffer, v.slot++);
      buffer ^= 1;
    }
  }

  // This lane's place for head n in the probability tile.
  __device__ __forceinline__ __half2* probability_of(int buffer, int n) const {
    const int line = 2 * t_ + n % 2;  // of 8
    const int column = 8 * ((2 * warp_ + g_ / 4) ^ line) + g_ % 4 * 2;
    return reinterpret_cast<__half2*>(&smem_.probability[buffer][n / 2 * 8 + line][column]);
  }

  // The probabilities of a tile: to the probability tile, published, and into l.
  template <int kDigits>
  __device__ __forceinline__ void weigh(const Sums<kDigits>& sum, const Candidates& candidates, int buffer, float shift,
                                        const float (&to_log2)[kHeads], bool& waiting, Score (&reference)[kHeads]) {
    float sum_of_pair[kHeads];
    const bool watches = shift == kTop;
    bool above = watches || waiting, tail = false;
    const auto probabilities = [&] {
#pragma unroll
      for (int n = 0; n < kHeads; ++n) {
        float p[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float x = fmaf(difference<kDigits>(score<kDigits>(sum, n, j), reference[n]), to_log2[n], shift);
          tail |= candidates.has(j) && x < kTop - kTail * kLog2E;
          p[j] = ex2(candidates.has(j) ? x : minus_infinity());
        }
        sum_of_pair[n] = p[0] + p[1];
        above |= sum_of_pair[n] > kLargest;
        *probability_of(buffer, n) = __floats2half2_rn(p[0], p[1]);
      }
    };
    probabilities();
    if (consumers_or(above)) {  // else P is published
      move_reference<kDigits>(sum, candidates, watches, to_log2, waiting, reference);
      tail = false;
      probabilities();
      if (watches && tail) smem_.met_tail = true;
      consumers_sync();  // P is published
    }
#pragma unroll
    for (int n = 0; n < kHeads; ++n) sum_[n] += sum_of_pair[n];
  }

  __device__ __forceinline__ void release(unsigned long long& barrier) const {
    __syncwarp();
    arrive_as_one(shared_address(&barrier), lane_ == 0);
  }

  // sum = K * digits, for this lane: [4 * (column / 8) + 2 * j + column % 2] for candidate g + 8j of the warp's 16 and
  // columns 8i + 2t and the next.
  template <int kDigits>
  __device__ __forceinline__ void begin_products(int slot, Sums<kDigits>& sum) const {
    constexpr int kQueryHalf = kDigitColumns<kDigits> * kRow, kKeyHalf = kTile * kRow;
    const unsigned key = __shfl_sync(0xffffffffu, shared_address(&smem_.key[slot][0][0][0]), 0);
    const unsigned query = shared_address(smem_.digits(kDigitColumns<kDigits>));
#if INT8_WS_WGMMA
    const unsigned a = wgmma_steps::operand(key), b = wgmma_steps::operand(query);
    wgmma_steps::begin();
    wgmma_steps::multiply(sum, a, b);
#pragma unroll
    for (int step = 1; step < 8; ++step)
      wgmma_steps::multiply_add(sum, a + (step / 4 * kKeyHalf + step % 4 * 32) / 16,
                                b + (step / 4 * kQueryHalf + step % 4 * 32) / 16);
    wgmma_steps::commit();
#else
#pragma unroll
    for (int n = 0; n < 2 * kHeads * kDigits; ++n) sum[n] = 0;
    const unsigned a_address = key + (16 * warp_ + lane_ % 16) * kRow + 16 * (lane_ / 16 ^ lane_ % 8);
    const unsigned b_address = query + lane_ % 8 * kRow + 16 * (lane_ / 8 ^ lane_ % 8);
#pragma unroll 1  // more at a time would spill
    for (int pair = 0; pair < 4; ++pair) {  // of steps of 32 channels
      unsigned a[2][4];
#pragma unroll
      for (int n = 0; n < 2; ++n) ldmatrix_x4(a[n], (a_address ^ (pair % 2 * 64 + n * 32)) + pair / 2 * kKeyHalf);
#pragma unroll
      for (int j = 0; j < kHeads * kDigits / 2; ++j) {
        unsigned b[4];
        ldmatrix_x4(b, (b_address ^ pair % 2 * 64) + pair / 2 * kQueryHalf + j * 8 * kRow);
        int (&c)[4] = *reinterpret_cast<int (*)[4]>(&sum[4 * j]);
        mma_m16n8k32(c, a[0], b[0], b[1]);
        mma_m16n8k32(c, a[1], b[2], b[3]);
      }
    }
#endif
  }

  template <int kCount>
  __device__ __forceinline__ static void wait_for_products(int (&sum)[kCount]) {
#if INT8_WS_WGMMA
    wgmma_steps::wait(sum);
#endif
  }

  // Of candidate g + 8j and the n-th head of the product.
  template <int kDigits>
  __device__ __forceinline__ static Score score(const Sums<kDigits>& sum, int n, int j) {
    const auto of_digit = [&](int digit) {
      const int column = n * kDigits + digit;
      return sum[column / 2 * 4 + 2 * j + column % 2];
    };
    if constexpr (kDigits == 2)
      return {256 * of_digit(0) + of_digit(1), 0};
    else
      return {256 * of_digit(0) + of_digit(1), 256 * of_digit(2) + of_digit(3)};
  }

  template <int kDigits>
  __device__ __forceinline__ static typename Units<kDigits>::Type units(Score x) {
    if constexpr (kDigits == 2)
      return x.upper;
    else
      return x.upper * 65536ll + x.lower;
  }

  template <int kDigits>
  __device__ __forceinline__ static float difference(Score x, Score reference) {
    const float upper = static_cast<float>(x.upper - reference.upper);
    return kDigits == 2 ? upper : fmaf(upper, 65536.f, static_cast<float>(x.lower - reference.lower));
  }

  // Moves the reference of each head to this tile's maximum if that is larger, and l and acc with it. Rare.
  template <int kDigits>
  __device__ __forceinline__ void move_reference(const Sums<kDigits>& sum, const Candidates& candidates, bool watches,
                                                 const float (&to_log2)[kHeads], bool& waiting,
                                                 Score (&reference)[kHeads]) {
    using Type = typename Units<kDigits>::Type;
    constexpr Type kNone = Units<kDigits>::kNone;
#pragma unroll
    for (int n = 0; n < kHeads; ++n) {
      Type m = kNone;
#pragma unroll
      for (int j = 0; j < 2; ++j)
        if (candidates.has(j)) m = max(m, units<kDigits>(score<kDigits>(sum, n, j)));
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) m = max(m, __shfl_xor_sync(0xffffffffu, m, lanes));
      if (g_ == 0) smem_.max_of_warp[warp_][kHeads * t_ + n] = m;
    }
    consumers_sync();  // the maxima of the warps are published
#pragma unroll
    for (int n = 0; n < kHeads; ++n) {
      const int head = kHeads * t_ + n;
      Type m = kNone;
#pragma unroll
      for (int w = 0; w < kConsumers / 32; ++w) m = max(m, static_cast<Type>(smem_.max_of_warp[w][head]));
      const Score top =
          kDigits == 2 ? Score{static_cast<int>(m), 0} : Score{static_cast<int>(m >> 16), static_cast<int>(m & 0xffff)};
      if (waiting) {
        reference[n] = top;
        if (warp_ == 0 && g_ == 0) smem_.first_max[head] = m;
      } else if (m > units<kDigits>(reference[n])) {
        if (watches && static_cast<float>(m - smem_.first_max[head]) * to_log2[n] > kMaxRise * kLog2E)
          smem_.met_tail = true;
        const float factor = ex2(-difference<kDigits>(top, reference[n]) * to_log2[n]);
        reference[n] = top;
        sum_[n] *= factor;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          acc_[i][n / 2][n % 2] *= factor;
          acc_[i][n / 2][2 + n % 2] *= factor;
        }
      }
    }
    waiting = false;
  }

  // acc += V^T * P^T for this warp's channels.
  __device__ __forceinline__ void add_weighted_values(int buffer, int slot) {
    const unsigned p_address = shared_address(&smem_.probability[buffer][lane_ % 8][8 * (lane_ / 8 ^ lane_ % 8)]);
    // ldmatrix transposes pairs of codes: a lane gets channels 2g and 2g + 1 of slots 2t and 2t + 1, which
    // codes_to_half parts into the rows g and g + 8 of an A fragment.
    const unsigned v_address =
        shared_address(&smem_.value[slot][candidate_of_slot(lane_)][16 * (4 * warp_ ^ lane_ % 8)]);
#pragma unroll
    for (int k = 0; k < kTile / 32; ++k) {
      unsigned p[kPairs][4];
#pragma unroll
      for (int j = 0; j < kPairs; ++j)
        ldmatrix_x4(p[j], (p_address ^ 64 * k) + j * 8 * sizeof(smem_.probability[0][0]));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        unsigned codes[4];
        ldmatrix_x4_trans(codes, (v_address ^ 16 * i) + 32 * kHeadSize * k);
        if (k == kTile / 32 - 1 && i == 3) release(smem_.value_empty[slot]);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          unsigned v[4];
          int8_tc::codes_to_half(codes[2 * n], v[0], v[1]);
          int8_tc::codes_to_half(codes[2 * n + 1], v[2], v[3]);
#pragma unroll
          for (int j = 0; j < kPairs; ++j) mma_m16n8k16(acc_[i][j], v, p[j][2 * n], p[j][2 * n + 1]);
        }
      }
    }
  }

  // --- after the last tile -----------------------------------------------------------------------------------------

  // Divides and writes, unless a tail was met.
  template <typename F>
  __device__ __forceinline__ bool finish(F open_out) {
    consumers_sync();  // everyone is done with the maxima of the warps, whose place is taken
#pragma unroll
    for (int n = 0; n < kHeads; ++n) {
      const float of_warp = lanes_sum<28>(sum_[n]);
      if (g_ == 0) smem_.sum_of_warp[warp_][kHeads * t_ + n] = of_warp;
    }
    consumers_sync();  // the sums of the warps are published
    if (smem_.met_tail) return false;
    __nv_bfloat16* out = open_out();
#pragma unroll
    for (int n = 0; n < kHeads; ++n) {
      const int head = kHeads * t_ + n;
      if (head >= task_.group) break;
      float l = 0.f;
#pragma unroll
      for (int w = 0; w < kConsumers / 32; ++w) l += smem_.sum_of_warp[w][head];
      const float inverse = __frcp_rn(l);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int channel = 64 * warp_ + 16 * i + 2 * g_;
        const float2 s = __ldg(reinterpret_cast<const float2*>(task_.value_scale + channel));
        const float even = acc_[i][n / 2][n % 2] * inverse, odd = acc_[i][n / 2][2 + n % 2] * inverse;
        *reinterpret_cast<unsigned*>(out + head * kHeadSize + channel) =
            l == 0.f ? 0u : bf16x2_bits(even * s.x, odd * s.y);
      }
    }
    return true;
  }

  const Task& task_;
  Smem<kStages>& smem_;
  const int warp_, lane_, g_, t_;
  bool watch_tail_ = false;
  float sum_[kHeads] = {};  // l of this lane's candidates; as acc, in units of the probability tile
  float acc_[4][kPairs][4] =
      {};  // [16 channels][pair of heads][C fragment: even channel, odd channel], of two heads each
};

// Where path single puts its output: heads and channels as int8_tc::Attention gives them.
struct SingleOutput {
  __nv_bfloat16* out;  // [group, 256]

  __device__ __forceinline__ void put_head(int, float, float) const {}
  __device__ __forceinline__ void put_acc(int head, int channel, float2 x, float l) const {
    const float inverse = l == 0.f ? 0.f : __frcp_rn(l);
    *reinterpret_cast<unsigned*>(out + head * kHeadSize + channel) = bf16x2_bits(x.x * inverse, x.y * inverse);
  }
  __device__ __forceinline__ void put_acc(int, int, float4, float) const {}  // of its other paths
  __device__ __forceinline__ void put_path(int) const {}
};

// --- the CTA --------------------------------------------------------------------------------------------------------

// The parameters of the kernels.
struct Call {
  const __nv_bfloat16* query;  // [rows, query_heads, 256]
  const Code* key;             // [kv_heads, context, 256]
  const Code* value;           // [kv_heads, context, 256]
  const float* key_scale;      // [kv_heads, 256]
  const float* value_scale;    // [kv_heads, 256]
  const int* selected;         // [rows, candidates]
  __nv_bfloat16* out;          // [rows, query_heads, 256]
  int context, candidates, group;
  float scale;
  int forced_path;
  unsigned* path_counts;
  const unsigned char* taken;  // [rows, kv_heads] whether another kernel has the row, or null

  __device__ __forceinline__ __nv_bfloat16* out_of(uint3 cta, uint3 grid) const {
    return out + (static_cast<size_t>(cta.x) * grid.y + cta.y) * group * kHeadSize;
  }

  __device__ __forceinline__ bool takes_another(uint3 cta, uint3 grid) const {
    return taken != nullptr && taken[static_cast<size_t>(cta.x) * grid.y + cta.y] != 0;
  }

  __device__ __forceinline__ Task task_of(uint3 cta, uint3 grid) const {
    const size_t first_head = (static_cast<size_t>(cta.x) * grid.y + cta.y) * group;
    const size_t cache_offset = static_cast<size_t>(cta.y) * context * kHeadSize;
    return {query + first_head * kHeadSize,
            key + cache_offset,
            value + cache_offset,
            key_scale + cta.y * kHeadSize,
            value_scale + cta.y * kHeadSize,
            selected + static_cast<size_t>(cta.x) * candidates,
            context,
            candidates,
            group,
            0,
            (candidates + kTile - 1) / kTile,
            scale};
  }
};

template <int kStages, int kProducers>
__device__ __forceinline__ void attend(const Call& call) {
  extern __shared__ __align__(1024) unsigned char smem_bytes[];
  Smem<kStages>& smem = *reinterpret_cast<Smem<kStages>*>(smem_bytes);
  if (call.taken != nullptr) pdl_wait();  // the kernel before has said which rows it has
  if (call.takes_another(block_index(), grid_size())) return;
  const Task task = call.task_of(block_index(), grid_size());
  if (threadIdx.x == kConsumers) {
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init(shared_address(&smem.key_full[s]), 33 * kProducers);  // and one of each warp for `valid`
      mbarrier_init(shared_address(&smem.value_full[s]), 32 * kProducers);
      mbarrier_init(shared_address(&smem.key_empty[s]), arrivals(kConsumers, 32));
      mbarrier_init(shared_address(&smem.value_empty[s]), arrivals(kConsumers, 32));
    }
    mbarrier_init(shared_address(&smem.decided), 1);
    smem.met_tail = false;
  }
  __syncthreads();  // the barriers are initialised
  if (threadIdx.x >= kConsumers) {
    produce<kStages, kProducers>(task, smem);
    return;
  }
  const auto out = [&] { return call.out_of(block_index(), grid_size()); };  // computed where it is needed
  const int path = heads_per_lane(task.group) == 3 ? Consumer<kStages, 3>(task, smem).run(call.forced_path, out)
                                                   : Consumer<kStages, 4>(task, smem).run(call.forced_path, out);
  if (call.path_counts != nullptr && threadIdx.x == 0) atomicAdd(call.path_counts + path, 1u);
  if (path != kSingle) return;

  // Everyone is done with shared memory, and the copies have landed. A producer may still ask for the path, which lies
  // behind what is taken now.
  consumers_sync();
  // The body of decode, of which this is the only split: prefill's, which skips tiles, would spill.
  const Task again = call.task_of(block_index(), grid_size());  // not held in registers until here
  int8_tc::Attention<true>(again, *reinterpret_cast<int8_tc::Smem<true>*>(smem_bytes)).run(int8_tc::kSingle, [&] {
    return SingleOutput{out()};
  });
}

}  // namespace int8_ws
