// SPDX-License-Identifier: MIT
// kernels/dsa/int8_ws.cuh - the body of prefill_int8_ws.cu, whose contract says what it computes and how: producers
// that gather one row's candidates, consumers for one row or, in prefill_int8_union.cu, for two that share their tiles.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

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
using int8_tc::Indices;
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

// Of one row. Another layout (prefill_int8_union.cu) has the same names for what consumers use.
template <int kStages>
struct Layout {
  static constexpr int kRows = 1;

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

  // Before the barriers are initialised again.
  __device__ __forceinline__ void invalidate() {
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
      mbarrier_invalidate(shared_address(&key_full[s]));
      mbarrier_invalidate(shared_address(&value_full[s]));
      mbarrier_invalidate(shared_address(&key_empty[s]));
      mbarrier_invalidate(shared_address(&value_empty[s]));
    }
    mbarrier_invalidate(shared_address(&decided));
  }

  // Where a consumer is in the copies.
  struct Place {
    Ring k, v;

    __device__ __forceinline__ void enter_tile(int columns) {
      k.enter(kStages);
      v.enter(kStages - takes_stage(columns));
    }
    __device__ __forceinline__ void leave_key() { ++k.slot; }
    __device__ __forceinline__ void leave_value() { ++v.slot; }
  };
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
__device__ __forceinline__ void produce(const Task& task, Smem<kStages>& smem, unsigned thread) {
  constexpr int kRows = kTile / kWarps, kEntries = kRows / 32;
  const int lane = thread % 32, first = kRows * (static_cast<int>(thread - kConsumers) / 32);
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

// kRowHeads heads of each row per lane; heads past the group have a unit of 0. A lane's heads are counted through its
// rows: head n is head n % kRowHeads of its row n / kRowHeads.
template <typename Smem, int kRowHeads>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const Task& task, Smem& smem)
      : task_(task),
        smem_(smem),
        warp_(thread_index() / 32),
        lane_(thread_index() % 32),
        g_(lane_ / 4),
        t_(lane_ % 4) {}

  // Attends and writes to open_out(), [group, 256] of the first row. The path, kSingle if the CTA needs that: then
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
  static constexpr int kRows = Smem::kRows, kHeads = kRows * kRowHeads, kPairs = (kHeads + 1) / 2;

  static constexpr bool kValuesByGroup = INT8_WS_WGMMA && kRows > 1;  // of warps: values weighted by wgmma

  // Heads whose scores are computed together: all, or those of a row where their sums would not fit the registers.
  template <int kDigits>
  static constexpr int kPart = kRows > 1 && kDigits == 4 ? kRowHeads : kHeads;

  // The score of a head, in units: 2^16 * upper + lower with four digits, upper with two.
  struct Score {
    int upper, lower;
  };

  template <int kDigits>
  using Sums = int[2 * kPart<kDigits> * kDigits];

  // Which of a tile's entries are candidates.
  struct Candidates {
    unsigned of_lane[kRows];  // bits 0 and 8: this lane's candidates g and g + 8

    __device__ __forceinline__ bool has(int row, int j) const { return (of_lane[row] & (j == 0 ? 1 : 256)) != 0; }
  };

  // --- before the first tile ---------------------------------------------------------------------------------------

  // Warp w prepares heads [kHeads * w, kHeads * (w + 1)), lane i their channels [8i, 8i + 8). The path.
  __device__ __forceinline__ int prologue(int forced) {
    uint4 q[kRowHeads];
    const auto load = [&](int row) {
#pragma unroll
      for (int n = 0; n < kRowHeads; ++n) q[n] = load_query(kHeads * warp_ + kRowHeads * row + n);
    };
    load(0);
    float key_scale[8];
    const float4* scales = reinterpret_cast<const float4*>(task_.key_scale) + 2 * lane_;
    *reinterpret_cast<float4*>(key_scale) = __ldg(scales);
    *reinterpret_cast<float4*>(key_scale + 4) = __ldg(scales + 1);
    const float2 value_scale = __ldg(reinterpret_cast<const float2*>(task_.value_scale) + threadIdx.x);

    bool exceeds = false;
#pragma unroll 1
    for (int row = 0;;) {
#pragma unroll
      for (int n = 0; n < kRowHeads; ++n) {
        const int head = kHeads * warp_ + kRowHeads * row + n;
        Channels channels(q[n], key_scale);
        const DigitScale scale = scale_of(channels, head);
        const bool fits = fold_two(channels, scale.factor * 0x1p-16f, head);
        const float unit = scale.unit * 65536.f;
        exceeds |= !(unit * (0.5f * 128.f * kHeadSize) <= kQueryBudget && fits);  // so NaN counts
        if (lane_ == 0) smem_.to_log2[head] = unit * kLog2E;
      }
      if (++row == kRows) break;
      load(row);
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

  // Of lane t's heads, [kHeads * t, kHeads * (t + 1)) over all lanes of a quad.
  __device__ __forceinline__ static int row_of(int head) { return kRows == 1 ? 0 : head % kHeads / kRowHeads; }
  __device__ __forceinline__ static int head_in_row(int head) {
    return kRows == 1 ? head : head / kHeads * kRowHeads + head % kRowHeads;
  }

  // Elements of query and out from the first row to another.
  __device__ __forceinline__ size_t from_row(int row) const {
    return kRows == 1 ? 0 : static_cast<size_t>(row) * grid_size().y * task_.group * kHeadSize;
  }

  __device__ __forceinline__ uint4 load_query(int head) const {
    const __nv_bfloat16* query = task_.query + from_row(row_of(head)) + head_in_row(head) * kHeadSize;
    return head_in_row(head) < task_.group ? __ldg(reinterpret_cast<const uint4*>(query) + lane_)
                                           : make_uint4(0, 0, 0, 0);
  }

  __device__ __forceinline__ DigitScale scale_of(Channels& channels, int head) const {
    const DigitScale scale = int8_tc::digit_scale(channels, task_.scale);
    return head_in_row(head) < task_.group ? scale : DigitScale{0.f, 0.f};
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

  // q * key_scale in units of 1 / factor, below 2^15, rounded once. False if key_scale * factor is beyond FP32.
  __device__ __forceinline__ bool fold_two(const Channels& c, float factor, int head) {
    constexpr float kRound = 12582912.f;  // 1.5 * 2^23: its bits then count units, from 0x4b400000 on
    unsigned word[8], largest = 0;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      word[n] = __float_as_uint(fmaf(c.q[n], c.key_scale[n] * factor, kRound)) + 128;
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
    store_digit<2>(head, 0, make_uint2(high[0], high[1]));
    store_digit<2>(head, 1, make_uint2(low[0], low[1]));
    return largest < 0x4b408000u;
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
    float to_log2[kHeads];  // of two rows read again for each tile, or registers spill
    const auto load_units = [&] {
#pragma unroll
      for (int n = 0; n < kHeads; ++n) to_log2[n] = smem_.to_log2[kHeads * t_ + n];
    };
    if (kRows == 1) load_units();
    const float shift = watch_tail_ ? kTop : kTop - kHeadroom;
    unsigned waiting = (1u << kRows) - 1;  // bit r: row r has met no candidate
    typename Smem::Place at;

    for (int tile = 0, buffer = 0; tile < task_.tile_end; ++tile) {
      at.enter_tile(kDigitColumns<kDigits>);
      mbarrier_wait(shared_address(&smem_.key_full[at.k.slot]), at.k.parity);  // K and `valid` have landed
      const void* valid = smem_.valid[at.k.slot];
      Candidates candidates;
#pragma unroll
      for (int row = 0; row < kRows; ++row)
        candidates.of_lane[row] = static_cast<const unsigned short*>(valid)[4 * row + warp_] >> g_;
      if (kRows == 1 && *static_cast<const unsigned long long*>(valid) == 0) {  // as early rows of a prompt have them
        mbarrier_wait(shared_address(&smem_.value_full[at.v.slot]), at.v.parity);
        release(smem_.key_empty[at.k.slot]);
        release(smem_.value_empty[at.v.slot]);
        at.leave_key();
        at.leave_value();
        continue;
      }
      publish_to_products();
      __syncwarp();
#pragma unroll
      for (int first = 0; first < kHeads; first += kPart<kDigits>) {
        Sums<kDigits> sum;
        begin_products<kDigits>(at.k.slot, first, sum);
        if (kRows > 1) load_units();
        wait_for_products(sum);
        if (first + kPart<kDigits> == kHeads) {
          release(smem_.key_empty[at.k.slot]);
          at.leave_key();
        }
        weigh<kDigits>(sum, first, candidates, buffer, shift, to_log2, waiting, reference);
      }

      mbarrier_wait(shared_address(&smem_.value_full[at.v.slot]), at.v.parity);  // V has landed
      add_weighted_values(buffer, at.v.slot);
      at.leave_value();
      buffer ^= 1;
    }
  }

  // This lane's place for head n in the probability tile.
  __device__ __forceinline__ __half2* probability_of(int buffer, int n) const {
    const int line = 2 * t_ + n % 2;  // of 8
    const int column = 8 * ((2 * warp_ + g_ / 4) ^ line) + g_ % 4 * 2;
    if constexpr (kRows == 1) {
      return reinterpret_cast<__half2*>(&smem_.probability[buffer][n / 2 * 8 + line][column]);
    } else {
      int place = line * kTile + column;
      asm("" : "+r"(place));  // one sum, or the compiler holds both parts in registers, which then spill
      return reinterpret_cast<__half2*>(&smem_.probability[buffer][n / 2 * 8][0] + place);
    }
  }

  // The probabilities of heads [first, first + kPart): to the probability tile, published, and into l.
  template <int kDigits>
  __device__ __forceinline__ void weigh(const Sums<kDigits>& sum, int first, const Candidates& candidates, int buffer,
                                        float shift, const float (&to_log2)[kHeads], unsigned& waiting,
                                        Score (&reference)[kHeads]) {
    constexpr unsigned kPartRows = (1u << kPart<kDigits> / kRowHeads) - 1;
    float sum_of_pair[kPart<kDigits>];
    const bool watches = shift == kTop;
    bool above = watches || (waiting >> first / kRowHeads & kPartRows) != 0, tail = false;
    const auto probabilities = [&] {
#pragma unroll
      for (int i = 0; i < kPart<kDigits>; ++i) {
        const int n = first + i, row = n / kRowHeads;
        float p[2];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float x = fmaf(difference<kDigits>(score<kDigits>(sum, i, j), reference[n]), to_log2[n], shift);
          tail |= candidates.has(row, j) && x < kTop - kTail * kLog2E;
          p[j] = ex2(candidates.has(row, j) ? x : minus_infinity());
        }
        sum_of_pair[i] = p[0] + p[1];
        above |= sum_of_pair[i] > kLargest;
        *probability_of(buffer, n) = __floats2half2_rn(p[0], p[1]);
      }
    };
    probabilities();
    if (kValuesByGroup) publish_to_products();
    if (consumers_or(above)) {  // else P is published
      move_reference<kDigits>(sum, first, candidates, watches, to_log2, waiting, reference);
      tail = false;
      probabilities();
      if (watches && tail) smem_.met_tail = true;
      if (kValuesByGroup) publish_to_products();
      consumers_sync();  // P is published
    }
#pragma unroll
    for (int i = 0; i < kPart<kDigits>; ++i) sum_[first + i] += sum_of_pair[i];
  }

  __device__ __forceinline__ void release(unsigned long long& barrier) const {
    __syncwarp();
    if (lane_ == 0) mbarrier_arrive(shared_address(&barrier));
  }

  // sum = K * digits of heads [first, first + kPart), for this lane: [4 * (column / 8) + 2 * j + column % 2] for
  // candidate g + 8j of the warp's 16 and columns 8i + 2t and the next.
  template <int kDigits>
  __device__ __forceinline__ void begin_products(int slot, int first, Sums<kDigits>& sum) const {
    constexpr int kQueryHalf = kDigitColumns<kDigits> * kRow, kKeyHalf = kTile * kRow;
    const unsigned key = __shfl_sync(0xffffffffu, shared_address(&smem_.key[slot][0][0][0]), 0);
    const unsigned query = shared_address(smem_.digits(kDigitColumns<kDigits>)) + columns_of(first, kDigits) * kRow;
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
    for (int n = 0; n < 2 * kPart<kDigits> * kDigits; ++n) sum[n] = 0;
    const unsigned a_address = key + (16 * warp_ + lane_ % 16) * kRow + 16 * (lane_ / 16 ^ lane_ % 8);
    const unsigned b_address = query + lane_ % 8 * kRow + 16 * (lane_ / 8 ^ lane_ % 8);
#pragma unroll 1  // more at a time would spill
    for (int pair = 0; pair < 4; ++pair) {  // of steps of 32 channels
      unsigned a[2][4];
#pragma unroll
      for (int n = 0; n < 2; ++n) ldmatrix_x4(a[n], (a_address ^ (pair % 2 * 64 + n * 32)) + pair / 2 * kKeyHalf);
#pragma unroll
      for (int j = 0; j < kPart<kDigits> * kDigits / 2; ++j) {
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
  __device__ __forceinline__ void move_reference(const Sums<kDigits>& sum, int first, const Candidates& candidates,
                                                 bool watches, const float (&to_log2)[kHeads], unsigned& waiting,
                                                 Score (&reference)[kHeads]) {
    using Type = typename Units<kDigits>::Type;
    constexpr Type kNone = Units<kDigits>::kNone;
#pragma unroll
    for (int n = first; n < first + kPart<kDigits>; ++n) {
      Type m = kNone;
#pragma unroll
      for (int j = 0; j < 2; ++j)
        if (candidates.has(n / kRowHeads, j)) m = max(m, units<kDigits>(score<kDigits>(sum, n - first, j)));
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) m = max(m, __shfl_xor_sync(0xffffffffu, m, lanes));
      if (g_ == 0) smem_.max_of_warp[warp_][kHeads * t_ + n] = m;
    }
    consumers_sync();  // the maxima of the warps are published
    unsigned met = 0;
#pragma unroll
    for (int n = first; n < first + kPart<kDigits>; ++n) {
      const int head = kHeads * t_ + n;
      Type m = kNone;
#pragma unroll
      for (int w = 0; w < kConsumers / 32; ++w) m = max(m, static_cast<Type>(smem_.max_of_warp[w][head]));
      const Score top =
          kDigits == 2 ? Score{static_cast<int>(m), 0} : Score{static_cast<int>(m >> 16), static_cast<int>(m & 0xffff)};
      if (kRows > 1 && m == kNone) continue;
      met |= 1u << n / kRowHeads;
      if (waiting >> n / kRowHeads & 1) {
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
    waiting &= ~met;
  }

  // acc += V^T * P^T for this warp's channels.
  __device__ __forceinline__ void add_weighted_values(int buffer, int slot) {
    if constexpr (kValuesByGroup) {
      add_values_by_group(buffer, slot);
      return;
    }
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

  // The same by wgmma, for channels 64i + 16w of warp w: a step's values become FP16 while those before are added.
  __device__ __forceinline__ void add_values_by_group(int buffer, int slot) {
#if INT8_WS_WGMMA
    const unsigned v_address = shared_address(&smem_.value[slot][candidate_of_slot(lane_)][16 * (warp_ ^ lane_ % 8)]);
    const unsigned p =
        wgmma_steps::operand(__shfl_sync(0xffffffffu, shared_address(&smem_.probability[buffer][0][0]), 0));
    constexpr int kAhead = 3;
    unsigned codes[kAhead][4];
    const auto load = [&](int step) {
      ldmatrix_x4_trans(codes[step % kAhead], (v_address ^ 64 * (step % 4)) + 32 * kHeadSize * (step / 4));
      if (step == kTile / 32 * 4 - 1) release(smem_.value_empty[slot]);
    };
#pragma unroll
    for (int step = 0; step < kAhead - 1; ++step) load(step);
#pragma unroll
    for (int k = 0; k < kTile / 32; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int step = 4 * k + i;
        unsigned v[2][4];
        if (step + kAhead - 1 < 8) load(step + kAhead - 1);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          int8_tc::codes_to_half(codes[step % kAhead][2 * n], v[n][0], v[n][1]);
          int8_tc::codes_to_half(codes[step % kAhead][2 * n + 1], v[n][2], v[n][3]);
        }
        wgmma_steps::begin();
#pragma unroll
        for (int n = 0; n < 2; ++n) wgmma_steps::multiply_add(acc_[i], v[n], p + 4 * k + 2 * n);
        wgmma_steps::commit();
        wgmma_steps::wait_but<1>();
      }
    }
    wgmma_steps::wait(acc_);
#endif
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
      const int head = head_in_row(kHeads * t_ + n);
      if (head >= task_.group) {
        if (kRows == 1) break;
        continue;
      }
      float l = 0.f;
#pragma unroll
      for (int w = 0; w < kConsumers / 32; ++w) l += smem_.sum_of_warp[w][kHeads * t_ + n];
      const float inverse = __frcp_rn(l);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int channel = (kValuesByGroup ? 64 * i + 16 * warp_ : 64 * warp_ + 16 * i) + 2 * g_;
        const float2 s = __ldg(reinterpret_cast<const float2*>(task_.value_scale + channel));
        const float even = acc_[i][n / 2][n % 2] * inverse, odd = acc_[i][n / 2][2 + n % 2] * inverse;
        *reinterpret_cast<unsigned*>(out + from_row(n / kRowHeads) + head * kHeadSize + channel) =
            l == 0.f ? 0u : bf16x2_bits(even * s.x, odd * s.y);
      }
    }
    return true;
  }

  const Task& task_;
  Smem& smem_;
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

  __device__ __forceinline__ __nv_bfloat16* out_of(uint3 cta, uint3 grid) const {
    return out + (static_cast<size_t>(cta.x) * grid.y + cta.y) * group * kHeadSize;
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

// On path two or four. The path, kSingle if the CTA needs that: then nothing is written; of a producer another.
template <int kStages, int kProducers, typename Indices>
__device__ __forceinline__ int attend_digits(const Call& call, const Indices& indices) {
  extern __shared__ __align__(1024) unsigned char smem_bytes[];
  using Shared = Smem<kStages>;
  Shared& smem = *reinterpret_cast<Shared*>(smem_bytes);
  const Task task = call.task_of(indices.cta(), grid_size());
  if (threadIdx.x == kConsumers) {
#pragma unroll
    for (int s = 0; s < kStages; ++s) {
      mbarrier_init(shared_address(&smem.key_full[s]), 33 * kProducers);  // and one of each warp for `valid`
      mbarrier_init(shared_address(&smem.value_full[s]), 32 * kProducers);
      mbarrier_init(shared_address(&smem.key_empty[s]), kConsumers / 32);
      mbarrier_init(shared_address(&smem.value_empty[s]), kConsumers / 32);
    }
    mbarrier_init(shared_address(&smem.decided), 1);
    smem.met_tail = false;
  }
  __syncthreads();  // the barriers are initialised
  if (threadIdx.x >= kConsumers) {
    produce<kStages, kProducers>(task, smem, indices.thread());
    return kTwo;
  }
  const auto out = [&] { return call.out_of(indices.cta(), grid_size()); };  // computed where it is needed
  const int path = heads_per_lane(task.group) == 3 ? Consumer<Shared, 3>(task, smem).run(call.forced_path, out)
                                                   : Consumer<Shared, 4>(task, smem).run(call.forced_path, out);
  if (call.path_counts != nullptr && threadIdx.x == 0) atomicAdd(call.path_counts + path, 1u);
  return path;
}

// On path single, by the consumers alone.
template <typename Indices>
__device__ __forceinline__ void attend_single(const Call& call, const Indices& indices) {
  extern __shared__ __align__(1024) unsigned char smem_bytes[];
  consumers_sync();  // everyone is done with shared memory; the producers have returned, or are about to
  // The body of decode, of which this is the only split: prefill's, which skips tiles, would spill.
  using Attention = int8_tc::Attention<true, Indices>;
  const Task again = call.task_of(indices.cta(), grid_size());  // not held in registers until here
  Attention(again, *reinterpret_cast<int8_tc::Smem<true>*>(smem_bytes)).run(int8_tc::kSingle, [&] {
    return SingleOutput{call.out_of(indices.cta(), grid_size())};
  });
}

template <int kStages, int kProducers>
__device__ __forceinline__ void attend(const Call& call) {
  if (attend_digits<kStages, kProducers>(call, Indices()) == kSingle) attend_single(call, Indices());
}

}  // namespace int8_ws
