// SPDX-License-Identifier: MIT
// kernels/dsa/prefill_int8_union.cu - prefill_int8_ws for rows whose lists are much alike: two neighbours share each
// tile of the union of their candidates, so that what both selected is read and made FP16 once.
//
// Computes  out[r, h, :] of prefill_int8_ws.
// Grid      (rows, kv_heads). The CTAs of rows 2i and 2i + 1 compare the first 32 entries of both lists. If at least
//           half of these are common, the first CTA takes both rows, and the second returns; else each takes its own.
// Union     A CTA with two rows marks their candidates in two bit maps, counts, and writes the union in ascending
// order,
//           each with the rows that have it; so lists need no order. Its rows are taken one after the other all the
//           same if a list has a candidate twice (so duplicates keep their weight), or the union more than 3/4 of the
//           candidates of both, more than 3840, or 64 successive ones that span 2^14 positions or more.
// Block     4 consumer warps and 1 producer, as prefill_int8_ws, and as many bytes of shared memory, so that 3 CTAs fit
//           an sm_90 SM: K and V tiles take turns in 3 slots.
// Warps     As in prefill_int8_ws, for both rows: lane t has heads [3t, 3t + 3) of each. A row's probability of a
//           candidate that only the other has is 0. On sm_90a wgmma adds the values: channels 64i + 16w of consumer w.
// Paths     0 union_two, 1 union_four: of both rows, by what either needs; 2 two, 3 four: of a row alone; 4 single.
// Each
//           as in prefill_int8_ws; rows that share tiles and meet a tail start again one by one. The paths count rows.
// Errors    As of prefill_int8_ws.
// Debug     forced_path and path_counts as of decode_int8_tc; a path below 2 is forced on rows alone too, as 2 and 3.
// Needs     What prefill_int8_ws needs. Rows share tiles only with a group of up to 12 and a context of up to 131072.
// Leaves    every element of out written.
#include "common/fact.cuh"
#include "dsa/int8_ws.cuh"

namespace int8_union {

using int8_ws::Call;
using int8_ws::kConsumers;
using int8_ws::kHeadSize;
using int8_ws::kRow;
using int8_ws::kTile;
using int8_ws::Ring;
using int8_ws::Task;

constexpr int kThreads = kConsumers + 32;
constexpr int kRowHeads = 3;  // of each row, per lane
constexpr int kMaxGroup = 4 * kRowHeads;
constexpr int kHeads = 2 * kMaxGroup;  // of both rows
constexpr int kColumns = 2 * kHeads;   // digits that have a place of their own: two of each head
constexpr int kSlots = 3;
constexpr int kMostTiles = 60;                    // of a union
constexpr int kResident = INT8_WS_WGMMA ? 3 : 1;  // with mma.sync, registers would spill

enum Path : int { kUnionTwo, kUnionFour, kTwo, kFour, kSingle, kPaths };
static_assert(static_cast<int>(kUnionTwo) == int8_ws::kTwo && static_cast<int>(kUnionFour) == int8_ws::kFour, "");

// Of two lists.
struct Found {
  unsigned size, distinct, listed;  // candidates of the union; of both lists, each once; and as often as they have them
};

// Of two rows. K and V take turns in the slots of one ring: each copy is on its way for nearly a tile's time.
struct Layout {
  static constexpr int kRows = 2;

  union {
    Code key[kSlots][2][kTile][kRow];
    Code value[kSlots][kTile][kHeadSize];
    unsigned map[kSlots * kTile * kHeadSize / sizeof(unsigned)];  // before the first copy, of both rows
  };
  Code digit[2][kColumns][kRow];  // four of each head take the last slot as well
  __half probability[2][kHeads][kTile];
  unsigned short candidate[kMostTiles * kTile];  // of the union, ascending
  int base[kMostTiles + 1];                      // position of the first candidate of each tile, and of the last of all
  union {
    long long max_of_warp[kConsumers / 32][kHeads];
    float sum_of_warp[kConsumers / 32][kHeads];
    Found found_by_warp[kThreads / 32];
  };
  long long first_max[kHeads];
  float to_log2[kHeads];
  alignas(16) unsigned valid[kSlots][2][2];  // [row]: bit i of word w: entry 32w + i of the tile is a candidate of it
  union {
    unsigned long long key_full[kSlots], value_full[kSlots];
  };
  union {
    unsigned long long key_empty[kSlots], value_empty[kSlots];
  };
  unsigned long long decided;
  int path;
  bool met_tail;

  __device__ static constexpr bool takes_stage(int columns) { return columns > kColumns; }
  __device__ __forceinline__ Code* digits(int columns) {
    return takes_stage(columns) ? &value[kSlots - 1][0][0] : &digit[0][0][0];
  }

  // Until what the producer requests before it knows the path has landed: K and V of tile 0.
  __device__ __forceinline__ void wait_for_first_copies(int) {
    mbarrier_wait(shared_address(&key_full[0]), 0);
    mbarrier_wait(shared_address(&key_full[1]), 0);
  }

  struct Place {
    Ring next, k, v;

    __device__ __forceinline__ void enter_tile(int columns) {
      const int slots = kSlots - takes_stage(columns);
      next.enter(slots);
      k = next;
      ++next.slot;
      next.enter(slots);
      v = next;
      ++next.slot;
    }
    __device__ __forceinline__ void leave_key() {}
    __device__ __forceinline__ void leave_value() {}
  };
};
struct alignas(1024) Smem : Layout {};
static_assert(sizeof(Smem) <= 75 * 1024, "3 CTAs per sm_90 SM: 228 KiB / 3, less 1 KiB reserved each");
constexpr int kMostContext = 32 * (sizeof(Smem::map) / sizeof(unsigned) / 3);

// --- the union ------------------------------------------------------------------------------------------------------

// A candidate of the union: which rows have it, and the low bits of its position. The rest is that of the tile's first
// candidate, or one more.
constexpr unsigned kInFirst = 0x8000, kInSecond = 0x4000, kSpan = 0x4000;

// Gives each candidate of two lists and the number of its list to f, in any order.
template <typename F>
__device__ __forceinline__ void for_each_candidate(const Call& call, const int* lists, F f) {
  constexpr int kBatch = 13;  // loads on their way, of each list: all of 2048 entries
  for (int begin = 0; begin < call.candidates; begin += kBatch * kThreads) {
    int entry[2][kBatch];
#pragma unroll
    for (int k = 0; k < 2 * kBatch; ++k)
      entry[k % 2][k / 2] =
          load_entry(lists + k % 2 * call.candidates, begin + k / 2 * kThreads + threadIdx.x, call.candidates);
#pragma unroll
    for (int k = 0; k < 2 * kBatch; ++k) {
      const int position = candidate_or_none(entry[k % 2][k / 2], call.context);
      if (position >= 0) f(static_cast<unsigned>(position), k % 2);
    }
  }
}

// Whether the lists of two rows look alike, from their first 32 entries: the same answer in each warp of both CTAs.
__device__ __forceinline__ bool look_alike(const Call& call, unsigned row) {
  const int lane = threadIdx.x % 32;
  const int* lists = call.selected + static_cast<size_t>(row) * call.candidates;
  const int first = candidate_or_none(load_entry(lists, lane, call.candidates), call.context);
  const int second = candidate_or_none(load_entry(lists + call.candidates, lane, call.candidates), call.context);
  bool common = false;
#pragma unroll
  for (int n = 0; n < 32; ++n) common |= __shfl_sync(0xffffffffu, first, n) == second;
  const unsigned listed = __ballot_sync(0xffffffffu, second >= 0);
  return listed != 0 && 2 * __popc(__ballot_sync(0xffffffffu, common) & listed) >= __popc(listed);
}

// Builds the union of the lists of two rows, if that is worth it. Its tiles, or 0.
__device__ __forceinline__ int unite(const Call& call, Smem& smem, unsigned row) {
  const int words = (call.context + 31) / 32;
  unsigned* const map = smem.map;            // bit p of map[r * words ..]: position p is a candidate of row r
  unsigned* const before = map + 2 * words;  // candidates of the union in all earlier words
  const int* lists = call.selected + static_cast<size_t>(row) * call.candidates;
  for (int i = threadIdx.x; i < 2 * words; i += kThreads) map[i] = 0;
  __syncthreads();  // the maps are empty
  unsigned listed = 0;
  for_each_candidate(call, lists, [&](unsigned position, int list) {
    ++listed;
    atomicOr(map + list * words + position / 32, 1u << position % 32);
  });
  __syncthreads();  // the maps are complete

  const int part = (words + kThreads - 1) / kThreads | 1;  // words of each thread; odd: they lie in different banks
  const int begin = min(static_cast<int>(threadIdx.x) * part, words), end = min(begin + part, words);
  unsigned size = 0, distinct = 0;
  for (int w = begin; w < end; ++w) {
    size += __popc(map[w] | map[words + w]);
    distinct += __popc(map[w]) + __popc(map[words + w]);
  }
  unsigned first = size;  // of this thread: how many the threads before have
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const unsigned more = __shfl_up_sync(0xffffffffu, first, lanes);
    if (threadIdx.x % 32 >= lanes) first += more;
  }
  first -= size;
  const Found found = {__reduce_add_sync(0xffffffffu, size), __reduce_add_sync(0xffffffffu, distinct),
                       __reduce_add_sync(0xffffffffu, listed)};
  if (threadIdx.x % 32 == 0) smem.found_by_warp[threadIdx.x / 32] = found;
  __syncthreads();  // what the warps found is published
  Found all = {0, 0, 0};
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) {
    const Found of_warp = smem.found_by_warp[w];
    if (w < threadIdx.x / 32) first += of_warp.size;
    all = {all.size + of_warp.size, all.distinct + of_warp.distinct, all.listed + of_warp.listed};
  }
  const int tiles = (all.size + kTile - 1) / kTile;
  if (all.distinct < all.listed || tiles > kMostTiles || 4 * all.size > 3 * all.listed) return 0;

  for (int w = begin; w < end; ++w) {
    before[w] = first;
    first += __popc(map[w] | map[words + w]);
  }
  __syncthreads();  // `before` is published
  for_each_candidate(call, lists, [&](unsigned position, int list) {
    const unsigned w = position / 32, bit = position % 32, in_first = map[w], in_second = map[words + w];
    if (list == 1 && (in_first >> bit & 1) != 0) return;
    const unsigned at = before[w] + __popc((in_first | in_second) & ((1u << bit) - 1));
    smem.candidate[at] =
        position % kSpan | (list == 0 ? kInFirst : 0) | (list == 1 || (in_second >> bit & 1) != 0 ? kInSecond : 0);
    if (at % kTile == 0) smem.base[at / kTile] = position;
    if (at == all.size - 1) smem.base[tiles] = position;
  });
  const int past = all.size + threadIdx.x;
  if (past < tiles * kTile) smem.candidate[past] = 0;
  __syncthreads();  // the union is published
  const bool wide = threadIdx.x < tiles && smem.base[threadIdx.x + 1] - smem.base[threadIdx.x] >= kSpan;
  return __syncthreads_or(wide) ? 0 : tiles;
}

// --- the CTA of two rows --------------------------------------------------------------------------------------------

// Copies the rows of a tile of K or V into the next slot, as int8_ws::produce does.
template <bool kIsValue>
__device__ __forceinline__ void copy_tile(Smem& smem, Ring& at, int slots, const Code* source, unsigned target,
                                          const int (&position)[kTile / 2], bool all, uint4 valid) {
  constexpr int kRowBytes = kIsValue ? kHeadSize : kRow;
  at.enter(slots);
  const unsigned full = shared_address(&smem.key_full[at.slot]);
  mbarrier_wait(shared_address(&smem.key_empty[at.slot]), at.parity ^ 1);  // what it held is used
  if (threadIdx.x % 32 == 0) {
    if (!kIsValue) *reinterpret_cast<uint4*>(smem.valid[at.slot]) = valid;
    mbarrier_arrive(full);
  }
  __syncwarp();
  target += at.slot * sizeof(smem.key[0]);
  if (all)
    int8_ws::copy_rows<kTile, kRowBytes, kIsValue, true>(target, source, position);
  else
    int8_ws::copy_rows<kTile, kRowBytes, kIsValue, false>(target, source, position);
  mbarrier_arrive_copied(full);
  ++at.slot;
}

// As int8_ws::produce of one warp.
__device__ __forceinline__ void produce(const Task& task, Smem& smem) {
  const int lane = threadIdx.x % 32, chunk = lane % 16, odd = lane / 16;

  const Code* key = task.key + 16 * chunk;
  const Code* value = task.value + 16 * chunk;
  asm("" : "+l"(key), "+l"(value));  // one sum each, or the compiler adds the parts to every row's address anew
  const unsigned key_target = shared_address(&smem.key[0][chunk / 8][odd][16 * (chunk % 8 ^ odd)]);
  const unsigned value_target = shared_address(&smem.value[0][odd][16 * (chunk ^ 2 * odd)]);

  int slots = kSlots;
  const auto learn_path = [&] {
    mbarrier_wait(shared_address(&smem.decided), 0);
    slots -= smem.path == int8_ws::kFour;
    return smem.path != int8_ws::kSingle;
  };
  bool needed = true;
  Ring at;
  for (int tile = 0; tile < task.tile_end; ++tile) {
    if (tile == 1) needed = learn_path();  // before the last slot is copied to
    if (!needed) break;
    unsigned in_first[2], in_second[2];
    int entry[2], position[kTile / 2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const unsigned candidate = smem.candidate[tile * kTile + 32 * e + lane], base = smem.base[tile];
      entry[e] = candidate == 0 ? -1 : static_cast<int>(base + (candidate - base) % kSpan);
      in_first[e] = __ballot_sync(0xffffffffu, candidate & kInFirst);
      in_second[e] = __ballot_sync(0xffffffffu, candidate & kInSecond);
    }
    const bool all = ((in_first[0] | in_second[0]) & (in_first[1] | in_second[1])) == 0xffffffffu;
#pragma unroll
    for (int i = 0; i < kTile / 2; ++i) position[i] = __shfl_sync(0xffffffffu, entry[i / 16], i % 16 * 2 + odd);
    const uint4 valid = make_uint4(in_first[0], in_first[1], in_second[0], in_second[1]);
    copy_tile<false>(smem, at, slots, key, key_target, position, all, valid);
    copy_tile<true>(smem, at, slots, value, value_target, position, all, valid);
  }
  cp_async_commit();  // without a group of theirs, nothing would wait for the copies
  cp_async_wait<0>();
}

// On path two or four, as int8_ws::attend_digits.
__device__ __forceinline__ int attend_both(const Call& call, Smem& smem, int tiles) {
  if (threadIdx.x == kConsumers) {
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      mbarrier_init(shared_address(&smem.key_full[s]), 33);  // copies, and one arrival for `valid`
      mbarrier_init(shared_address(&smem.key_empty[s]), kConsumers / 32);
    }
    mbarrier_init(shared_address(&smem.decided), 1);
    smem.met_tail = false;
  }
  __syncthreads();  // the barriers are initialised
  Task task = call.task_of(block_index(), grid_size());
  task.tile_end = tiles;
  if (threadIdx.x >= kConsumers) {
    produce(task, smem);
    return kUnionTwo;
  }
  const int path = int8_ws::Consumer<Smem, kRowHeads>(task, smem).run(call.forced_path, [&] {
    return call.out_of(block_index(), grid_size());
  });
  if (call.path_counts != nullptr && threadIdx.x == 0)
    atomicAdd(call.path_counts + (path == int8_ws::kSingle ? kSingle : path), 2u);
  return path;
}

// What the rows of a CTA have in the last bytes of shared memory, behind all else: in registers it would spill.
struct Rows {
  int now, last;  // the row that is attended to, and the last, from the CTA's own on
  int singles;    // bit r: row r still needs path single
};
constexpr unsigned kSmemBytes = 75 * 1024;
static_assert(sizeof(Layout) + sizeof(Rows) <= kSmemBytes && sizeof(int8_ws::Layout<2>) + sizeof(Rows) <= kSmemBytes &&
                  sizeof(int8_tc::Smem<true>) + sizeof(Rows) <= kSmemBytes,
              "there is room behind each of them");

// As int8_tc::Indices, of the row that is attended to. Not threadIdx.x: what the compiler computes from that is alike
// for both rows, so it would hold that in registers from one to the next, and these spill.
struct Indices {
  volatile Rows& rows;

  __device__ __forceinline__ uint3 cta() const {
    uint3 index = block_index();
    index.x += rows.now;
    return index;
  }
  __device__ __forceinline__ static unsigned thread() { return thread_index(); }
};

__device__ __forceinline__ void attend(const Call& call) {
  extern __shared__ __align__(1024) unsigned char smem_bytes[];
  Smem& smem = *reinterpret_cast<Smem*>(smem_bytes);
  volatile Rows& rows = *reinterpret_cast<Rows*>(smem_bytes + kSmemBytes - sizeof(Rows));
  const Indices indices{rows};
  const unsigned first = block_index().x & ~1u;
  const bool share = first + 1 < grid_size().x && call.group <= kMaxGroup && call.context <= kMostContext &&
                     call.forced_path < kTwo && look_alike(call, first);
  if (share && block_index().x != first) return;  // the CTA of the first row has both
  if (threadIdx.x == 0) {
    rows.now = rows.singles = 0;
    rows.last = share;
  }
  const int tiles = share ? unite(call, smem, first) : 0;
  if (tiles > 0) {
    if (attend_both(call, smem, tiles) == int8_ws::kSingle && threadIdx.x == 0) rows.singles = 3;
  } else {
    Call alone = call;
    if (call.forced_path >= kTwo) alone.forced_path -= kTwo;
    if (call.path_counts != nullptr) alone.path_counts += kTwo;
    for (;;) {
      __syncthreads();  // `rows` is published, and everyone is done with what shared memory held
      if (int8_ws::attend_digits<2, 1>(alone, indices) == int8_ws::kSingle && threadIdx.x == 0)
        rows.singles = rows.singles | 1 << rows.now;
      const bool last = rows.now == rows.last;
      __syncthreads();  // everyone is done with the row, and knows whether it was the last
      if (last) break;
      if (threadIdx.x == 0) rows.now = 1;
      if (threadIdx.x == kConsumers) reinterpret_cast<int8_ws::Smem<2>*>(smem_bytes)->invalidate();
    }
  }
  if (threadIdx.x >= kConsumers) return;
#pragma unroll 1
  for (;;) {
    int8_ws::consumers_sync();  // `singles` is published
    const int left = rows.singles;
    if (left == 0) return;
    int8_ws::consumers_sync();  // everyone knows
    if (threadIdx.x == 0) {
      rows.now = left % 2 == 0;
      rows.singles = left & left - 1;
    }
    Call again = call;
    asm volatile("" : "+f"(again.scale));  // nor a product of it
    int8_ws::attend_single(again, indices);
  }
}

}  // namespace int8_union

KERNEL_FACT(prefill_int8_union, threads, int8_union::kThreads);
KERNEL_FACT(prefill_int8_union, smem_bytes, int8_union::kSmemBytes);
KERNEL_FACT(prefill_int8_union, tile, int8_ws::kTile);
KERNEL_FACT(prefill_int8_union, max_group, int8_ws::kMaxGroup);
KERNEL_FACT(prefill_int8_union, head_size, int8_ws::kHeadSize);
KERNEL_FACT(prefill_int8_union, paths, int8_union::kPaths);
KERNEL_FACT(prefill_int8_union, path_union_two, int8_union::kUnionTwo);
KERNEL_FACT(prefill_int8_union, path_union_four, int8_union::kUnionFour);
KERNEL_FACT(prefill_int8_union, path_two, int8_union::kTwo);
KERNEL_FACT(prefill_int8_union, path_four, int8_union::kFour);
KERNEL_FACT(prefill_int8_union, path_single, int8_union::kSingle);

extern "C" __global__ void __launch_bounds__(int8_union::kThreads, int8_union::kResident)
    prefill_int8_union(const __nv_bfloat16* __restrict__ query, const Code* __restrict__ key,
                       const Code* __restrict__ value, const float* __restrict__ key_scale,
                       const float* __restrict__ value_scale, const int* __restrict__ selected,
                       __nv_bfloat16* __restrict__ out, int context, int candidates, int group, float scale,
                       int forced_path, unsigned* path_counts) {
  int8_union::attend(int8_ws::Call{query, key, value, key_scale, value_scale, selected, out, context, candidates, group,
                                   scale, forced_path, path_counts});
}
