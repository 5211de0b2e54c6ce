// SPDX-License-Identifier: MIT
// kernels/dsa/prefill_int8_union.cu - prefill_int8_ws for rows whose lists are much alike: four neighbours share each
// tile of the union of their candidates, so that what they select in common is read and made FP16 once.
//
// prefill_unite
// Computes  unions[i], the candidates of rows 4i to 4i + 3 in ascending order, each with the rows that have it, from
//           bit maps of their lists; so beyond their first entries lists need no order. Without tiles if the rows do
//           not share: unless there are four; the context is up to 131072; of the first 32 entries of each list at
//           least half stand among those of the list before; no list has a candidate twice (so that duplicates keep
//           their weight); the union is at most 2/3 of what the lists hold together, at most 4096; and each 16th of it,
//           and the last, lies less than 2^12 positions behind the 16th before.
// Grid      ceil(rows / 4), with prefill_unite_bytes_per_word of shared memory for each 32 positions of a context of up
//           to 131072; beyond that it needs none. Not to be launched programmatically: it waits for no kernel before.
// Leaves    tiles of every union written, the rest of it if that is not 0. A union has prefill_unite_union_bytes.
//
// prefill_int8_union
// Computes  out[r, h, :] of prefill_int8_ws for the rows it takes, and which those are. prefill_int8_ws, launched after
//           it, has the others. Both may be launched programmatically (PDL) behind the kernel before.
// Grid      (ceil(rows / 4), kv_heads). CTA (i, g) owns rows 4n to 4n + 3, n = ceil(rows / 4) - 1 - i, and query heads
//           [g * group, (g + 1) * group).
// Takes     all four rows or none. All, if they share; the group is up to 12; there are up to 128 KV heads; each query
//           needs no more than path `two` of prefill_int8_ws; no |q * key_scale| is beyond FP32; and no |value_scale|
//           is above 2^16.
// Block     8 warps, 2 CTAs per SM. All warps copy alike, behind the first products of values: V one tile ahead, K two.
//           A tile has one barrier. Behind it, the products of its values take turns with the next tile's scores, of
//           which there is one tile too many: it is not used. The last products are in flight while the next tile is
//           weighed.
// Tiles     Candidate n of a tile, as the union has them, stands in place n / 32 * 32 + n % 4 * 8 + n / 4 % 8 of it.
//           Warp w of a pair has the scores of places [16w, 16w + 16), a quarter: of either half of the tile the first
//           two or the last two of each four candidates.
// Warps     Scores: warpgroup p has rows 2p and 2p + 1, by wgmma as consumers of prefill_int8_ws; lane t heads
//           [3t, 3t + 3) of each. A row's probability of a candidate that it does not have is 0. Output: warpgroup p
//           has channels [128p, 128p + 128) of all rows, warp w of it [64i + 16w, 64i + 16w + 16) of these, i = 0, 1.
// Reference As of prefill_int8_ws, but 3 bits above the maximum of the tile that moves it, so that later tiles seldom
//           pass it; at the maximum if those of the tile's four quarters differ by more than 10 bits, as where the row
//           has no candidate in one: there may be a sink, below which FP16's whole range is needed.
// Errors    As of path `two` of prefill_int8_ws, but a score is rounded to FP32 before the reference is subtracted, and
//           p is off by 2^-33 of the largest in place of 2^-36.
// Debug     path_counts as of decode_int8_tc, by rows: 0 union, here; 1 two, 2 four, 3 single: of prefill_int8_ws.
//           With a forced_path above 0 no row is taken. prefill_int8_ws, launched after it, gets path_counts + 1,
//           and forced_path - 1 but at least -1.
// Needs     What prefill_int8_ws needs; unions 16-byte aligned. Only on sm_90a rows share.
// Leaves    every element of out of the rows taken written; taken[r, g], 0 or 1, of all rows.
#include "common/fact.cuh"
#include "dsa/int8_ws.cuh"

namespace int8_union {

using int8_ws::Call;
using int8_ws::Channels;
using int8_ws::DigitScale;
using int8_ws::kHeadSize;
using int8_ws::kRow;
using int8_ws::kTile;

enum Path : int { kUnion, kTwo, kFour, kSingle, kPaths };

constexpr int kRows = 4;
constexpr int kThreads = 256;
constexpr int kMaxGroup = 12;
constexpr int kMaxContext = 131072;
constexpr unsigned kMaxKvHeads = 128;
static_assert(1ull * kMaxKvHeads * kMaxContext * int8_ws::kHeadSize <= 1ull << 32, "Offsets hold all positions");

constexpr int kUniteThreads = 256;
constexpr int kMostTiles = 64;       // of a union
constexpr int kRun = 16;             // successive candidates of a union that share a base
constexpr int kRuns = kTile / kRun;  // of a tile
constexpr unsigned kSpan = 4096;     // positions of a run
constexpr unsigned kRowBit = kSpan;  // of an entry: row 0 has it; the next bits: rows 1 to 3
static_assert(kMostTiles * kRuns <= kUniteThreads, "a thread for each run");

// --- the union ------------------------------------------------------------------------------------------------------

// Of the lists of four rows, ascending.
struct Union {
  unsigned short candidate[kMostTiles * kTile];  // low bits of its position, and which rows have it
  unsigned base[kMostTiles * kRuns];             // position of the first candidate of each run
  int tiles;                                     // 0: the rows do not share, and nothing else counts
  int unused[3];                                 // so that 16 bytes divide it
};

// Of four lists.
struct Found {
  unsigned size, distinct, listed;  // candidates of the union; of the lists, each once; and as often as they have them
};

// *address |= bits in shared memory. With a generic address the compiler computes where that begins for each anew.
__device__ __forceinline__ void red_or(unsigned address, unsigned bits) {
  asm volatile("red.shared.or.b32 [%0], %1;" ::"r"(address), "r"(bits) : "memory");
}

// What prefill_unite has of a word of 32 positions: whether each row has them.
constexpr int kBytesPerWord = sizeof(uint4);
static_assert(kBytesPerWord == kRows * sizeof(unsigned), "a component for each row");

// Of its word: 1 << position % 32.
__device__ __forceinline__ unsigned bit_of(unsigned position) { return __funnelshift_l(1, 1, position); }

__device__ __forceinline__ unsigned in_any(uint4 rows) { return rows.x | rows.y | rows.z | rows.w; }

// Marks a position in a row's map, which is at a shared address; words of the four rows lie side by side.
__device__ __forceinline__ void mark(unsigned map, unsigned position) {
  red_or(map + (position & ~31u) / (32 / kBytesPerWord), bit_of(position));  // a shift less than position / 32 * 16
}

// Marks those of 4 * kFours entries that are candidates. How many.
template <int kFours>
__device__ __forceinline__ unsigned mark(unsigned map, unsigned context, const uint4 (&fours)[kFours]) {
  unsigned listed = 0;
#pragma unroll
  for (const uint4& four : fours) {
    const unsigned entries[] = {four.x, four.y, four.z, four.w};
    if (max(max(entries[0], entries[1]), max(entries[2], entries[3])) < context) {  // as a rule: no branch for each
#pragma unroll
      for (const unsigned position : entries) mark(map, position);
      listed += 4;
    } else {
#pragma unroll
      for (const unsigned position : entries) {
        if (position >= context) continue;
        mark(map, position);
        ++listed;
      }
    }
  }
  return listed;
}

// Marks the candidates of four lists in their maps. How many this thread has met. Lane 4i + r has entries of row r, so
// that the marks of a warp lie in all banks.
__device__ __forceinline__ unsigned mark_all(const int* lists, unsigned context, int candidates, unsigned map) {
  constexpr int kAhead = 4, kStep = 4 * kUniteThreads / kRows;
  const int row = threadIdx.x % kRows;
  const bool aligned = candidates % 4 == 0 && reinterpret_cast<size_t>(lists) % sizeof(uint4) == 0;
  const int* list = lists + static_cast<size_t>(row) * candidates;
  map += row * sizeof(unsigned);
  int first = threadIdx.x / kRows * 4;
  unsigned listed = 0;
  if (aligned) {
#pragma unroll 1
    for (; first + (kAhead - 1) * kStep < candidates; first += kAhead * kStep) {
      uint4 fours[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) fours[i] = __ldg(reinterpret_cast<const uint4*>(list + first + i * kStep));
      listed += mark(map, context, fours);
    }
  }
#pragma unroll 1
  for (; first < candidates; first += kStep) {
    const uint4 four[1] = {make_uint4(__ldg(list + first), load_entry(list, first + 1, candidates),
                                      load_entry(list, first + 2, candidates),
                                      load_entry(list, first + 3, candidates))};
    listed += mark(map, context, four);
  }
  return listed;
}

// Whether the lists of four rows look alike, from their first 32 entries: warp w compares rows w - 1 and w. Empties the
// maps, and leaves these entries marked.
__device__ __forceinline__ bool look_alike(const int* lists, int context, int candidates, unsigned* map) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32;
  int entry = -1;
  if (row < kRows)
    entry = candidate_or_none(load_entry(lists + static_cast<size_t>(row) * candidates, lane, candidates), context);
#pragma unroll 4
  for (int i = threadIdx.x; i < (context + 31) / 32; i += kUniteThreads)
    reinterpret_cast<uint4*>(map)[i] = make_uint4(0, 0, 0, 0);
  __syncthreads();  // the maps are empty
  if (entry >= 0) mark(shared_address(map + row), entry);
  __syncthreads();  // the first entries are marked
  bool alike = true;
  if (0 < row && row < kRows) {
    const bool common = entry >= 0 && (map[entry / 32 * kRows + row - 1] & bit_of(entry)) != 0;
    const int listed = __popc(__ballot_sync(0xffffffffu, entry >= 0));
    const int shared = __popc(__ballot_sync(0xffffffffu, common));
    alike = listed > 0 && 2 * shared >= listed;
  }
  return __syncthreads_and(alike);
}

// Writes the positions, modulo 65536, of a warp's candidates of the union: those of words [begin, end), to
// listed[first] and so on. `below` becomes how many of the union are below 65536, if 65535 is in one of
// these words.
__device__ __forceinline__ void list_union(const uint4* map, int begin, int end, unsigned first, unsigned short* listed,
                                           unsigned& below) {
  constexpr int kWords = 4;  // of a lane at a time
  const int lane = threadIdx.x % 32;
  for (int w = begin + lane; w - lane < end; w += 32 * kWords) {
    unsigned any[kWords], past[kWords];  // past: where the candidates of a lane's word end
#pragma unroll
    for (int i = 0; i < kWords; ++i) any[i] = w + 32 * i < end ? in_any(map[w + 32 * i]) : 0;
#pragma unroll
    for (int i = 0; i < kWords; i += 2) {  // sums of two words in one
      unsigned sums = __popc(any[i]) + (__popc(any[i + 1]) << 16);
#pragma unroll
      for (int lanes = 1; lanes < 32; lanes *= 2) {
        const unsigned more = __shfl_up_sync(0xffffffffu, sums, lanes);
        if (lane >= lanes) sums += more;
      }
      const unsigned of_warp = __shfl_sync(0xffffffffu, sums, 31);
      past[i] = first + sums % 65536;
      past[i + 1] = first + of_warp % 65536 + sums / 65536;
      first += of_warp % 65536 + of_warp / 65536;
    }
#pragma unroll
    for (int i = 0; i < kWords; ++i)
      if (w + 32 * i == 65536 / 32 - 1 && w + 32 * i < end) below = past[i];
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      unsigned short* target = listed + past[i];
      for (unsigned left = any[i]; left != 0;) {  // backwards: the highest bit takes one instruction
        const unsigned bit = 31 - __clz(left);
        left ^= bit_of(bit);
        *--target = 32 * (w + 32 * i) + bit;
      }
    }
  }
}

// Of the union: the low bits of a position, and which rows have it.
__device__ __forceinline__ unsigned entry_of(const uint4* map, unsigned position) {
  const uint4 rows = map[position / 32];
  const unsigned bit = bit_of(position);
  unsigned entry = position % kSpan;
  if ((rows.x & bit) != 0) entry += kRowBit;
  if ((rows.y & bit) != 0) entry += 2 * kRowBit;
  if ((rows.z & bit) != 0) entry += 4 * kRowBit;
  if ((rows.w & bit) != 0) entry += 8 * kRowBit;
  return entry;
}

// Writes the union of the lists of four rows if they share. Its tiles, or 0.
__device__ __forceinline__ int unite(const int* lists, int context, int candidates, unsigned* map, Union& all) {
  constexpr int kWarps = kUniteThreads / 32;
  __shared__ Found found_by_warp[kWarps];
  __shared__ __align__(4) unsigned short listed[kMostTiles * kTile];  // positions of the union modulo 65536
  __shared__ unsigned below;                                          // so many of them are below 65536
  Found found = {0, 0, mark_all(lists, context, candidates, shared_address(map))};
  if (threadIdx.x == 0) below = kMostTiles * kTile;
  __syncthreads();  // the maps are complete

  const uint4* const word = reinterpret_cast<const uint4*>(map);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, words = (context + 31) / 32;
  const int part = (words + kUniteThreads - 1) / kUniteThreads * 32;  // words of a warp
  const int begin = min(warp * part, words), end = min(begin + part, words);
#pragma unroll 4
  for (int w = begin + lane; w < end; w += 32) {
    const uint4 rows = word[w];
    found.size += __popc(in_any(rows));
    found.distinct += __popc(rows.x) + __popc(rows.y) + __popc(rows.z) + __popc(rows.w);
  }
  found = {__reduce_add_sync(0xffffffffu, found.size), __reduce_add_sync(0xffffffffu, found.distinct),
           __reduce_add_sync(0xffffffffu, found.listed)};
  if (lane == 0) found_by_warp[warp] = found;
  __syncthreads();  // what the warps found is published
  found = {0, 0, 0};
  if (lane < kWarps) found = found_by_warp[lane];
  const unsigned first = __reduce_add_sync(0xffffffffu, lane < warp ? found.size : 0);  // of this warp
  found = {__reduce_add_sync(0xffffffffu, found.size), __reduce_add_sync(0xffffffffu, found.distinct),
           __reduce_add_sync(0xffffffffu, found.listed)};
  const unsigned size = found.size, tiles = (size + kTile - 1) / kTile;
  if (found.distinct < found.listed || tiles > kMostTiles || 3 * size > 2 * found.listed) return 0;

  list_union(word, begin, end, first, listed, below);
  __syncthreads();  // the positions are published

  const unsigned split = below;
  const auto position_of = [&](unsigned i) { return listed[i] + (i < split ? 0u : 65536u); };
#pragma unroll 1
  for (unsigned i = 2 * threadIdx.x; i < tiles * kTile; i += 2 * kUniteThreads) {
    unsigned entry[2];
    if (i + 1 < size) {
      const unsigned both = *reinterpret_cast<const unsigned*>(&listed[i]);
      entry[0] = entry_of(word, both % 65536 + (i < split ? 0u : 65536u));
      entry[1] = entry_of(word, both / 65536 + (i + 1 < split ? 0u : 65536u));
    } else {  // no row has those past the end, but they have a position in the cache
      const unsigned last = (size - 1) / kRun;
      entry[1] = i / kRun == last ? position_of(last * kRun) % kSpan : 0;
      entry[0] = i < size ? entry_of(word, position_of(i)) : entry[1];
    }
    *reinterpret_cast<unsigned*>(&all.candidate[i]) = entry[0] + (entry[1] << 16);
  }
  bool wide = false;
  const unsigned run = kRun * threadIdx.x;
  if (run < tiles * kTile) {
    const unsigned base = run < size ? position_of(run) : 0;
    all.base[threadIdx.x] = base;
    wide = run < size && position_of(min(run + kRun, size - 1)) - base >= kSpan;
  }
  return __syncthreads_or(wide) ? 0 : tiles;
}

// --- attention over the union ---------------------------------------------------------------------------------------

// Which of the fours of rows a CTA has. The last first: where lists grow with their rows, the longest.
__device__ __forceinline__ unsigned four_of(uint3 cta, uint3 grid) { return grid.x - 1 - cta.x; }

#if INT8_WS_WGMMA

constexpr int kPairThreads = 128;           // of the warpgroup that has the scores of a pair of rows
constexpr int kRowHeads = kMaxGroup / 4;    // of a row, per lane
constexpr int kLaneHeads = 2 * kRowHeads;   // of a pair
constexpr int kPairHeads = 4 * kLaneHeads;  // head n of lane t is head kLaneHeads * t + n of its pair
constexpr int kHeads = 2 * kPairHeads;
constexpr int kColumns = 2 * kPairHeads;                      // digits of a pair
constexpr float kShift = int8_ws::kTop - int8_ws::kHeadroom;  // log2 of what the probability tile holds of a reference
constexpr float kMargin = 3.f;                                // bits of a new reference above the tile's maximum
constexpr float kEven = 10.f;                                 // by which the quarters' maxima may differ for that

struct Layout {
  Code key[2][2][kTile][kRow];           // [tile % 2]; swizzled as wgmma_steps.cuh says
  Code value[2][kTile][kHeadSize];       // [tile % 2]; 16-byte chunk c of slot s is at c ^ (s % 8)
  Code digit[2][2][kColumns][kRow];      // [pair], as key
  __half probability[2][kHeads][kTile];  // [tile % 2][column of acc][slot], chunk c of row r at c ^ (r % 8)
  Union all;
  union {
    int max_of_warp[kThreads / 32][kPairHeads];  // units
    float sum_of_warp[kThreads / 32][kPairHeads];
  };
  // Of a head: the exponential's argument is to_log2 * score, in units, + offset. So offset stands for the reference.
  float to_log2[kHeads], offset[kHeads];
  float factor[kHeads];  // by which l and acc of a head change as its reference moves; at the end 1 / l
};
struct alignas(1024) Smem : Layout {};
static_assert(sizeof(Smem) <= 113 * 1024, "2 CTAs per sm_90 SM: 228 KiB / 2, less 1 KiB reserved each");

// Where a thread is: read again, so that no part of it stays in a register in between.
struct Place {
  const unsigned thread = thread_index();
  const unsigned warp = thread / 32, lane = thread % 32, pair = thread / kPairThreads, g = lane / 4, t = lane % 4;
};

// Two of a thread's offsets in arrays of shared memory, below 2^16, in one register: not computed anew for each tile.
class TwoOffsets {
 public:
  __device__ __forceinline__ TwoOffsets(unsigned first, unsigned second) : both_(second << 16 | first) {
    asm volatile("" : "+r"(both_));
  }
  __device__ __forceinline__ unsigned first() const { return both_ & 0xffffu; }
  __device__ __forceinline__ unsigned second() const { return both_ >> 16; }

 private:
  unsigned both_;
};

// A thread's part of the copies: one 16-byte chunk of four candidates of each tile, which follow each other in the
// union. Their places are 8 apart, so that in K one address does for all, in V two.
class Copies {
 public:
  static constexpr int kSteps = 4;
  using Offsets = unsigned[kSteps];  // in bytes from the first head's first row

  // Place r has chunk 0 at r % 8 in K; in V at what it has as a slot: 2 * (r % 4) + r / 8 % 2.
  __device__ __forceinline__ Copies(const Call& call, Smem& smem)
      : smem_(smem),
        key_(call.key),
        value_(call.value),
        target_(place_of(threadIdx.x) * kRow + chunk_of(threadIdx.x) / 8 * sizeof(smem.key[0][0]) +
                    16 * (chunk_of(threadIdx.x) % 8 ^ place_of(threadIdx.x) % 8),
                place_of(threadIdx.x) * kHeadSize + 16 * (chunk_of(threadIdx.x) ^ 2 * (place_of(threadIdx.x) % 4))),
        start_(blockIdx.y * call.context * kHeadSize + 16 * chunk_of(threadIdx.x)) {}

  __device__ __forceinline__ void find(const Union& all, int tile, Offsets& offset) const {
    constexpr unsigned kEntry = sizeof(all.candidate[0]), kBase = sizeof(all.base[0]);
    // In bytes, which takes two instructions less than an index. A run is 32 of them, and has one base.
    const unsigned first = tile * (kTile * kEntry) + thread_index() / 16 * (kSteps * kEntry);
    const uint2 entries = read<uint2>(all.candidate, first);
    const unsigned base = read<unsigned>(all.base, first / (kRun * kEntry / kBase) & ~(kBase - 1));
    const unsigned entry[kSteps] = {entries.x, entries.x >> 16, entries.y, entries.y >> 16};
#pragma unroll
    for (int n = 0; n < kSteps; ++n) offset[n] = (base + (entry[n] - base) % kSpan) * kHeadSize + start_;
  }

  // Where the copies of a tile go.
  __device__ __forceinline__ unsigned key_target(int slot) const {
    return shared_address(&smem_.key[slot]) + target_.first();
  }
  __device__ __forceinline__ unsigned value_target(int slot) const {
    return shared_address(&smem_.value[slot]) + target_.second();
  }

  // Nothing if guard is negative.
  __device__ __forceinline__ void key(int step, unsigned target, const Offsets& offset, int guard) const {
    cp_async_16(target + 8 * kRow * step, key_ + offset[step], guard);
  }
  __device__ __forceinline__ void value(int step, unsigned target, const Offsets& offset, int guard) const {
    cp_async_16((target ^ 16 * (step % 2)) + 8 * kHeadSize * step, value_ + offset[step], guard);
  }

 private:
  template <typename T>
  __device__ __forceinline__ static T read(const void* array, unsigned offset) {
    return *reinterpret_cast<const T*>(static_cast<const unsigned char*>(array) + offset);
  }
  __device__ __forceinline__ static unsigned place_of(unsigned thread) { return thread / 16 % 8 + thread / 128 * 32; }
  __device__ __forceinline__ static unsigned chunk_of(unsigned thread) { return thread % 16; }

  Smem& smem_;
  const Code *key_, *value_;
  const TwoOffsets target_;  // of the first row in K, in V
  const unsigned start_;     // of the head and, in each row, of the chunk, in bytes
};

class Attention {
 public:
  __device__ __forceinline__ Attention(const Call& call, Smem& smem)
      : call_(call), smem_(smem), copies_(call, smem), places_(places_of(Place())) {}

  // Starts the first copies and prepares the queries. Whether they and the scales of the values are such as path two
  // takes; if so, K of tile 0, the digits and the union are published.
  __device__ __forceinline__ bool begin(const Union& all, int tiles) {
    Queries first_queries, other_queries;
    load_queries(0, first_queries);
    Copies::Offsets first;
    copies_.find(all, 0, first);
    copies_.find(all, min(1, tiles - 1), ahead_);
#pragma unroll
    for (int n = 0; n < Copies::kSteps; ++n) copies_.key(n, copies_.key_target(0), first, 0);
    for (int i = 8 * threadIdx.x; i < tiles * kTile; i += 8 * kThreads)
      cp_async_16(shared_address(&smem_.all.candidate[i]), &all.candidate[i]);
    if (threadIdx.x < tiles)
      cp_async_16(shared_address(&smem_.all.base[kRuns * threadIdx.x]), &all.base[kRuns * threadIdx.x]);
    cp_async_commit();
#pragma unroll
    for (int n = 0; n < Copies::kSteps; ++n) copies_.value(n, copies_.value_target(0), first, 0);
#pragma unroll
    for (int n = 0; n < Copies::kSteps; ++n) copies_.key(n, copies_.key_target(1), ahead_, tiles - 2);
    cp_async_commit();
    load_queries(1, other_queries);
    const float value_scale = __ldg(call_.value_scale + blockIdx.y * kHeadSize + threadIdx.x);
    float key_scale[8];
    const float4* scales =
        reinterpret_cast<const float4*>(call_.key_scale + blockIdx.y * kHeadSize) + 2 * (threadIdx.x % 32);
    *reinterpret_cast<float4*>(key_scale) = __ldg(scales);
    *reinterpret_cast<float4*>(key_scale + 4) = __ldg(scales + 1);
    bool suffices = fold(0, first_queries, key_scale);
    suffices &= fold(1, other_queries, key_scale);
    suffices &= fabsf(value_scale) <= int8_ws::kTailScale;
    cp_async_wait<1>();  // K of tile 0 and the union have landed
    fence_for_async();
    return __syncthreads_and(suffices);
  }

  __device__ __forceinline__ void run(int tiles) {
    Sums sum;
    const unsigned digits = digit_operand(), first_keys = key_operand(0);
    wgmma_steps::begin();
#pragma unroll
    for (int step = 0; step < kKeySteps; ++step) multiply_keys(step, first_keys, digits, sum);
    wgmma_steps::commit();
    wgmma_steps::wait(sum);
    const Place at;
#pragma unroll
    for (int n = 0; n < kLaneHeads; ++n) to_log2_[n] = smem_.to_log2[kPairHeads * at.pair + kLaneHeads * at.t + n];
    Weighing with;
    load(0, with);
    move_references<true>(sum, with);
    unsigned next_keys = key_operand(1), probabilities = probability_operand(0);
    for (int tile = 0; tile < tiles; ++tile) {
      float sum_of_two[kLaneHeads];
      const bool above = weigh(sum, with, tile % 2, sum_of_two);
      wgmma_steps::wait(acc_);
      cp_async_wait<0>();
      fence_for_async();
      // P, V of this tile and K of the next are published, or references move.
      if (__syncthreads_or(above)) {
        load(tile, with);  // it was not held in registers until here
        move_references<false>(sum, with);
        weigh(sum, with, tile % 2, sum_of_two);
        fence_for_async();
        __syncthreads();  // P and the factors are published
        rescale();
      }
#pragma unroll
      for (int n = 0; n < kLaneHeads; ++n) sum_[n] += sum_of_two[n];
      add_weighted_values(tile, tiles, next_keys, digits, probabilities, sum);
      next_keys ^= key_operand(0) ^ key_operand(1);  // six instructions fewer than from tile % 2
      probabilities ^= probability_operand(0) ^ probability_operand(1);
      load(min(tile + 1, tiles - 1), with);
      from_here(sum);
    }
    wgmma_steps::wait(acc_);
    finish();
  }

 private:
  using Sums = int[4 * kLaneHeads];
  static constexpr int kKeySteps = kHeadSize / 32;

  // What a lane needs to make probabilities of its sums of a tile.
  struct Weighing {
    unsigned entries;  // of the two of its places g and g + 8, shifted so that kRowBit is the pair's first row
    float offset[kLaneHeads];

    __device__ __forceinline__ bool has(int n, int j) const {
      return (entries >> 16 * j & kRowBit << n / kRowHeads) != 0;
    }
  };

  // Of what this lane loads of a tile of values, and of its probabilities in a tile of these.
  __device__ __forceinline__ static TwoOffsets places_of(const Place& at) {
    const unsigned chunk = at.warp / 4 * 8 + at.warp % 4 ^ at.lane % 8;
    const unsigned row = kPairHeads * at.pair + 2 * at.t;  // head n is n / 2 * 8 + n % 2 further
    return {int8_ws::candidate_of_slot(at.lane) * kHeadSize + 16 * chunk,
            static_cast<unsigned>(sizeof(__half)) *
                (row * kTile + 8 * ((at.warp % 4 * 2 + at.g / 4) ^ 2 * at.t) + at.g % 4 * 2)};
  }

  // --- before the first tile ---------------------------------------------------------------------------------------

  __device__ __forceinline__ size_t head_offset(int row, int head) const {
    const uint3 cta = block_index(), grid = grid_size();
    return ((static_cast<size_t>(kRows * four_of(cta, grid) + row) * grid.y + cta.y) * call_.group + head) * kHeadSize;
  }

  // Warp w of a pair prepares the heads of lanes t = w, lane i their channels [8i, 8i + 8).
  using Queries = uint4[kRowHeads];

  __device__ __forceinline__ void load_queries(int row, Queries& q) const {
    const Place at;
    const int first = kRowHeads * (at.warp % 4);
    const uint4* query = reinterpret_cast<const uint4*>(call_.query + head_offset(2 * at.pair + row, first)) + at.lane;
#pragma unroll
    for (int n = 0; n < kRowHeads; ++n)
      q[n] = first + n < call_.group ? __ldg(query + n * (kHeadSize / 8)) : make_uint4(0, 0, 0, 0);
  }

  // As digit_scale if q * key_scale is finite, from the bits of the largest. Without a branch, so that heads overlap.
  __device__ __forceinline__ static DigitScale finite_digit_scale(unsigned largest, float scale) {
    using int8_tc::power_of_two;
    const int k = max(static_cast<int>((largest + 0x20000u) >> 23) - 127, -96);
    return {power_of_two(30 - k), fminf(scale * power_of_two(k - 30), power_of_two(80))};
  }

  // Whether two digits do.
  __device__ __forceinline__ bool fold(int row, const Queries& q, const float (&key_scale)[8]) {
    const Place at;
    bool suffice = true;
#pragma unroll
    for (int n = 0; n < kRowHeads; ++n) {
      const Channels channels(q[n], key_scale);
      const unsigned largest = int8_tc::largest_product(channels);
      suffice &= largest < 0x7f800000u;
      DigitScale scale = finite_digit_scale(largest, call_.scale);
      if (kRowHeads * (at.warp % 4) + n >= call_.group) scale = {0.f, 0.f};
      const int of_lane = kRowHeads * row + n;  // in columns 8 * of_lane + 2t and the next
      suffice &= int8_ws::fold_two(channels, scale.factor * 0x1p-16f, [&](int digit, uint2 codes) {
        const int column = 8 * of_lane + 2 * (at.warp % 4) + digit;
        Code* target = smem_.digit[at.pair][at.lane / 16][column];
        *reinterpret_cast<uint2*>(target + 16 * (at.lane % 16 / 2 ^ column % 8) + 8 * (at.lane % 2)) = codes;
      });
      const float unit = scale.unit * 65536.f;
      suffice &= int8_ws::within_budget(unit);
      if (at.lane == 0) {
        const int head = kPairHeads * at.pair + kLaneHeads * (at.warp % 4) + of_lane;
        smem_.to_log2[head] = unit * kLog2E;
        smem_.offset[head] = -minus_infinity();  // the first candidate moves the reference
      }
    }
    return suffice;
  }

  // --- the tiles ---------------------------------------------------------------------------------------------------

  // The n-th of the operands that follow `first`.
  template <typename T>
  __device__ __forceinline__ static unsigned operand_of(const T& first, unsigned n) {
    return wgmma_steps::operand(shared_address(&first)) + n * (sizeof(T) / 16);
  }
  __device__ __forceinline__ unsigned key_operand(int slot) const { return operand_of(smem_.key[0], slot); }
  __device__ __forceinline__ unsigned probability_operand(int buffer) const {
    return operand_of(smem_.probability[0], buffer);
  }
  __device__ __forceinline__ unsigned digit_operand() const {
    return __shfl_sync(0xffffffffu, operand_of(smem_.digit[0], thread_index() / kPairThreads), 0);
  }

  // One of the steps of sum = K * digits of this pair: of this lane's head n [4n + 2j + digit] for candidate g + 8j of
  // the warp's 16.
  __device__ __forceinline__ static void multiply_keys(int step, unsigned key, unsigned digits, Sums& sum) {
    const unsigned a = key + (step / 4 * kTile * kRow + step % 4 * 32) / 16;
    const unsigned b = digits + (step / 4 * kColumns * kRow + step % 4 * 32) / 16;
    if (step == 0)
      wgmma_steps::multiply(sum, a, b);
    else
      wgmma_steps::multiply_add(sum, a, b);
  }

  __device__ __forceinline__ void load(int tile, Weighing& with) const {
    const Place at;
    const int first = tile * kTile + at.warp % 4 / 2 * 32 + at.g * 4 + at.warp % 2 * 2;  // the next is 8 places further
    with.entries = *reinterpret_cast<const unsigned*>(&smem_.all.candidate[first]) >> 2 * at.pair;
    const float* offset = &smem_.offset[kPairHeads * at.pair + kLaneHeads * at.t];
#pragma unroll
    for (int n = 0; n < kLaneHeads; ++n) with.offset[n] = offset[n];
  }

  // The sums are not read before, and what was loaded is not loaded after.
  __device__ __forceinline__ static void from_here(Sums& sum) {
#pragma unroll
    for (int n = 0; n < 4 * kLaneHeads; ++n) asm volatile("" : "+r"(sum[n])::"memory");
  }

  __device__ __forceinline__ static int score(const Sums& sum, int n, int j) {
    return 256 * sum[4 * n + 2 * j] + sum[4 * n + 2 * j + 1];
  }

  // Writes the probabilities of a tile, and their sums over this lane's two candidates. Whether one of those is beyond
  // FP16.
  __device__ __forceinline__ bool weigh(const Sums& sum, const Weighing& with, int buffer,
                                        float (&sum_of_two)[kLaneHeads]) {
    float largest = 0.f;
    constexpr unsigned kRowBytes = sizeof(smem_.probability[0][0]);
    unsigned char* const tile = reinterpret_cast<unsigned char*>(&smem_.probability[buffer]);
#pragma unroll
    for (int n = 0; n < kLaneHeads; ++n) {
      float p[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float x = fmaf(static_cast<float>(score(sum, n, j)), to_log2_[n], with.offset[n]);
        p[j] = ex2(with.has(n, j) ? x : minus_infinity());
      }
      sum_of_two[n] = p[0] + p[1];
      largest = fmaxf(largest, sum_of_two[n]);
      *reinterpret_cast<__half2*>(tile + (places_.second() ^ n % 2 * (kRowBytes + 16)) + n / 2 * 8 * kRowBytes) =
          __floats2half2_rn(p[0], p[1]);
    }
    return largest > int8_ws::kLargest;
  }

  // Moves the reference of each head to this tile's, if that is higher, and l with it. Rare. kFirst: before the first
  // tile, when l and acc are 0 and no factor is needed.
  template <bool kFirst>
  __device__ __forceinline__ void move_references(const Sums& sum, Weighing& with) {
    const Place at;
    constexpr int kNone = int8_ws::Units<2>::kNone, kMost = 2147483647;
#pragma unroll
    for (int n = 0; n < kLaneHeads; ++n) {
      int m = kNone;
#pragma unroll
      for (int j = 0; j < 2; ++j)
        if (with.has(n, j)) m = max(m, score(sum, n, j));
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) m = max(m, __shfl_xor_sync(0xffffffffu, m, lanes));
      if (at.g == 0) smem_.max_of_warp[at.warp][kLaneHeads * at.t + n] = m;
    }
    if (at.pair == 0)
      named_sync<1, kPairThreads>();
    else
      named_sync<2, kPairThreads>();  // the maxima of the pair's warps are published
#pragma unroll
    for (int n = 0; n < kLaneHeads; ++n) {
      const int head = kPairHeads * at.pair + kLaneHeads * at.t + n;
      int m = kNone, least = kMost;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const int of_warp = smem_.max_of_warp[4 * at.pair + w][kLaneHeads * at.t + n];
        m = max(m, of_warp);
        least = min(least, of_warp);
      }
      const float top = static_cast<float>(m) * to_log2_[n];
      // A quarter without a candidate has kNone: far below, but for units so small that any score is near 0.
      const float spread = top - static_cast<float>(least) * to_log2_[n];
      const float offset = (spread <= kEven ? kShift - kMargin : kShift) - top;
      float factor = 1.f;
      if (m != kNone && offset < with.offset[n]) {
        if constexpr (!kFirst) {
          factor = ex2(offset - with.offset[n]);
          sum_[n] *= factor;
        }
        with.offset[n] = offset;
      }
      if (at.warp % 4 == 0 && at.g == 0) {
        smem_.offset[head] = with.offset[n];
        if constexpr (!kFirst) smem_.factor[head] = factor;
      }
    }
  }

  // Head of the two pairs in column 8j + 2t + c of acc.
  __device__ __forceinline__ static int head_of(int t, int j, int c) {
    return j / 3 * kPairHeads + kLaneHeads * t + j % 3 * 2 + c;
  }

  __device__ __forceinline__ void rescale() {
    const Place at;
#pragma unroll
    for (int j = 0; j < kHeads / 8; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float factor = smem_.factor[head_of(at.t, j, c)];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          acc_[i][j][c] *= factor;
          acc_[i][j][2 + c] *= factor;
        }
      }
    }
  }

  // acc += V^T * P^T for this warp's channels, still in flight when it returns, and next = the sums of the next tile.
  // They take turns: tensor cores have scores to compute while codes of values become FP16. Meanwhile K two tiles ahead
  // and V one ahead are requested. keys, digits and probabilities are operands of products.
  __device__ __forceinline__ void add_weighted_values(int tile, int tiles, unsigned keys, unsigned digits,
                                                      unsigned probabilities, Sums& next) {
    const int buffer = tile % 2;
    const unsigned v_address = shared_address(&smem_.value[buffer]) + places_.first();
    const unsigned value_target = copies_.value_target(1 - buffer), key_target = copies_.key_target(buffer);
    unsigned codes[2][4];
    const auto load_codes = [&](int step) {
      ldmatrix_x4_trans(codes[step % 2], (v_address ^ 64 * (step % 2)) + 32 * kHeadSize * (step / 2));
    };
    load_codes(0);
    wgmma_steps::begin();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int n = 0; n < 2; ++n) multiply_keys(2 * step + n, keys, digits, next);
      if (step == 3) wgmma_steps::commit();  // the sums
      if (step + 1 < 4) load_codes(step + 1);
      unsigned v[2][4];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        int8_tc::codes_to_half(codes[step % 2][2 * n], v[n][0], v[n][1]);
        int8_tc::codes_to_half(codes[step % 2][2 * n + 1], v[n][2], v[n][3]);
      }
      wgmma_steps::begin();
#pragma unroll
      for (int n = 0; n < 2; ++n)
        wgmma_steps::multiply_add(acc_[step % 2], v[n], probabilities + 4 * (step / 2) + 2 * n);
      wgmma_steps::commit();
#pragma unroll
      for (int n = 0; n < Copies::kSteps; ++n) {
        if (step == 0) copies_.value(n, value_target, ahead_, tiles - 2 - tile);
        if (step == 1) copies_.key(n, key_target, ahead_, tiles - 3 - tile);
      }
      if (step == 0) copies_.find(smem_.all, min(tile + 2, tiles - 1), ahead_);
      wgmma_steps::wait_but<1>();  // the v of the step before may be replaced; at last, the sums are there
    }
    cp_async_commit();
  }

  // --- after the last tile -----------------------------------------------------------------------------------------

  // A barrier of the CTA has followed the last look at the maxima of the warps, whose place the sums take.
  __device__ __forceinline__ void finish() {
    const Place at;
#pragma unroll
    for (int n = 0; n < kLaneHeads; ++n) {
      const float of_warp = lanes_sum<28>(sum_[n]);
      if (at.g == 0) smem_.sum_of_warp[at.warp][kLaneHeads * at.t + n] = of_warp;
    }
    __syncthreads();  // the sums of the warps are published
    if (threadIdx.x < kHeads) {
      float l = 0.f;
#pragma unroll
      for (int w = 0; w < 4; ++w) l += smem_.sum_of_warp[threadIdx.x / kPairHeads * 4 + w][threadIdx.x % kPairHeads];
      smem_.factor[threadIdx.x] = __frcp_rn(l);
    }
    __syncthreads();  // the factors are published
    float2 scale[2];
    const int channel = 128 * at.pair + 16 * (at.warp % 4) + 2 * at.g;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      scale[i] =
          __ldg(reinterpret_cast<const float2*>(call_.value_scale + block_index().y * kHeadSize + channel + 64 * i));
    const int first_head = kRowHeads * at.t;  // of this lane
    __nv_bfloat16* const first = call_.out + head_offset(0, first_head) + channel;
    const size_t row_size = static_cast<size_t>(grid_size().y) * call_.group * kHeadSize;
#pragma unroll
    for (int j = 0; j < kHeads / 8; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int of_lane = j % 3 * 2 + c, row = j / 3 * 2 + of_lane / kRowHeads, head = of_lane % kRowHeads;
        if (first_head + head >= call_.group) continue;
        const float factor = smem_.factor[head_of(at.t, j, c)];
        __nv_bfloat16* out = first + row * row_size + head * kHeadSize;
#pragma unroll
        for (int i = 0; i < 2; ++i)
          *reinterpret_cast<unsigned*>(out + 64 * i) =
              int8_ws::bf16x2_bits(acc_[i][j][c] * factor * scale[i].x, acc_[i][j][2 + c] * factor * scale[i].y);
      }
    }
  }

  const Call& call_;
  Smem& smem_;
  const Copies copies_;
  const TwoOffsets places_;     // in a tile of values and in one of probabilities
  Copies::Offsets ahead_;       // of the next tile; once its values are requested, of the one after
  float to_log2_[kLaneHeads];   // of this lane's heads
  float sum_[kLaneHeads] = {};  // l of this lane's candidates; as acc, in units of the probability tile
  float acc_[2][kHeads / 8][4] =
      {};  // [64 channels][8 columns][C fragment: even channel, odd channel], of two heads each
};

constexpr unsigned kSmemBytes = sizeof(Smem);

// Whether the rows are taken: then their output is written.
__device__ __forceinline__ bool attend(const Call& call, const Union& all) {
  extern __shared__ __align__(1024) unsigned char smem_bytes[];
  const int tiles = all.tiles;
  if (tiles == 0 || call.group > kMaxGroup || grid_size().y > kMaxKvHeads || call.forced_path > kUnion) return false;
  Attention attention(call, *reinterpret_cast<Smem*>(smem_bytes));
  if (!attention.begin(all, tiles)) {
    cp_async_wait<0>();
    return false;
  }
  attention.run(tiles);
  return true;
}

#else

constexpr unsigned kSmemBytes = 0;

__device__ __forceinline__ bool attend(const Call&, const Union&) { return false; }

#endif

}  // namespace int8_union

KERNEL_FACT(prefill_unite, threads, int8_union::kUniteThreads);
KERNEL_FACT(prefill_unite, smem_bytes, int8_union::kMaxContext / 32 * int8_union::kBytesPerWord);
KERNEL_FACT(prefill_unite, bytes_per_word, int8_union::kBytesPerWord);
KERNEL_FACT(prefill_unite, union_bytes, sizeof(int8_union::Union));
KERNEL_FACT(prefill_int8_union, threads, int8_union::kThreads);
KERNEL_FACT(prefill_int8_union, smem_bytes, int8_union::kSmemBytes);
KERNEL_FACT(prefill_int8_union, rows, int8_union::kRows);
KERNEL_FACT(prefill_int8_union, paths, int8_union::kPaths);
KERNEL_FACT(prefill_int8_union, path_union, int8_union::kUnion);
KERNEL_FACT(prefill_int8_union, path_two, int8_union::kTwo);
KERNEL_FACT(prefill_int8_union, path_four, int8_union::kFour);
KERNEL_FACT(prefill_int8_union, path_single, int8_union::kSingle);

extern "C" __global__ void __launch_bounds__(int8_union::kUniteThreads, 6)
    prefill_unite(const int* __restrict__ selected, int rows, int context, int candidates,
                  int8_union::Union* __restrict__ unions) {
  using namespace int8_union;
  pdl_launch_dependents();
  extern __shared__ __align__(16) unsigned map[];
  const size_t first_row = static_cast<size_t>(kRows) * blockIdx.x;
  const int* lists = selected + first_row * candidates;
  const bool share = INT8_WS_WGMMA && first_row + kRows <= rows && context <= kMaxContext &&
                     look_alike(lists, context, candidates, map);
  const int tiles = share ? unite(lists, context, candidates, map, unions[blockIdx.x]) : 0;
  if (threadIdx.x == 0) unions[blockIdx.x].tiles = tiles;
}

extern "C" __global__ void __launch_bounds__(int8_union::kThreads, 2)
    prefill_int8_union(const __nv_bfloat16* __restrict__ query, const Code* __restrict__ key,
                       const Code* __restrict__ value, const float* __restrict__ key_scale,
                       const float* __restrict__ value_scale, const int* __restrict__ selected,
                       __nv_bfloat16* __restrict__ out, int context, int candidates, int group, float scale,
                       int forced_path, unsigned* path_counts, int rows, const int8_union::Union* unions,
                       unsigned char* __restrict__ taken) {
  using namespace int8_union;
  pdl_launch_dependents();
  pdl_wait();  // the unions are made
  const Call call{query,   key,        value, key_scale, value_scale, selected,    out,
                  context, candidates, group, scale,     forced_path, path_counts, nullptr};
  const unsigned four = four_of(blockIdx, gridDim);
  const bool takes = attend(call, unions[four]);
  const int row = kRows * four + threadIdx.x;
  if (threadIdx.x < kRows && row < rows) {
    taken[static_cast<size_t>(row) * gridDim.y + blockIdx.y] = takes;
    if (takes && path_counts != nullptr) atomicAdd(path_counts + kUnion, 1u);
  }
}
