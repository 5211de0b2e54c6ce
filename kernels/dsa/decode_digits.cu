// SPDX-License-Identifier: MIT
// kernels/dsa/decode_digits.cu - decode attention of a few query rows over their gathered INT8 candidates in integer
// arithmetic, splits and merge in one kernel. The arithmetic is in digits.cuh.
//
// Kernels   decode_digits           12 query heads a CTA; the splits of a row are a cluster (sm_90a)
//           decode_digits_few       4 query heads a CTA, and a cluster for each such part of a group (sm_90a)
//           decode_digits_resident  12 query heads a CTA; the splits of a row merge through mailboxes (any)
//           With _long after one of the first two, a step of the main loop has more candidates: <kernel>_step says how
//           many. Right for any split; fastest is the shortest step that holds it.
// Computes  out of digits.cuh for row r and query head h, over the candidates of the row's list.
// Grid      (splits * parts, kv_heads, rows), parts = ceil(group / heads_per_cta). CTA (x, g, r) owns split x % splits
//           and the query heads from g * group + x / splits * heads_each on, heads_each = ceil(group / parts). Split s
//           has tiles_each tiles of 64 candidates, 1 more if s < tiles_more: those after the tiles of split s - 1.
//           With clusters `splits` CTAs in x are one, 2 to 8, 10 or 16. Without, splits <= 32, and unless it is 1 the
//           launch must be cooperative: CTAs wait for each other.
// Block     384 threads, <kernel>_smem_bytes of dynamic shared memory.
// Workspace decode_digits_resident alone, the others take null pointers: mailboxes (mailbox.cuh) for its CTAs, 16-byte
//           aligned, pieces [CTAs, 12, 256] floats and sums [CTAs, splits, 12] pairs of floats. All their bits are set
//           before the first launch and after each, whatever the sizes of a launch. Launches that may run at once need
//           mailboxes of their own.
// Debug     forced_path: -1 chooses by the inputs; 0, 1 take that path of digits.cuh in every CTA. path_counts, unless
//           null: each CTA adds 1 to the counter of its path.
// Needs     as digits.cuh; group <= 16; rows and kv_heads <= 65535.
// Leaves    every element of out written; zeros for a row without a candidate, whatever q and the scales hold. No CTA
//           waits for one that may not be resident: a cluster is placed whole, as is a cooperative launch. The same
//           bits in every launch.
#include "common/fact.cuh"
#include "dsa/digits.cuh"

namespace digits {

// What a launch is made of, beside the tensors.
struct Sizes {
  int context, candidates, group, heads_each, splits, tiles_each, tiles_more;
};

template <int kHeads, int kRuns, bool kCluster>
__device__ __forceinline__ void decode(const __nv_bfloat16* query, const Code* key, const Code* value,
                                       const float* key_scale, const float* value_scale, const int* selected,
                                       __nv_bfloat16* out, float4* pieces, float2* sums, const Sizes& sizes,
                                       float scale, int forced_path, unsigned* path_counts) {
  const unsigned row = blockIdx.z, kv_head = blockIdx.y;
  int split, part;  // no division: it would come before everything else
  if constexpr (kCluster) {
    split = cluster_rank();
    part = cluster_index();
  } else {
    for (split = blockIdx.x, part = 0; split >= sizes.splits; split -= sizes.splits) ++part;
  }
  const int begin = kTile * (split * sizes.tiles_each + min(split, sizes.tiles_more));
  const int count = min(kTile * (sizes.tiles_each + (split < sizes.tiles_more)), sizes.candidates - begin);
  const int* list = selected + static_cast<unsigned long long>(row) * unsigned(sizes.candidates) + unsigned(begin);
  int entry[kRuns];
  load_entries(entry, list, count, 0);  // the copies wait for these, and everything else for the copies
  const unsigned first_head = (row * gridDim.y + kv_head) * sizes.group + part * sizes.heads_each;
  const unsigned long long cache_offset =
      static_cast<unsigned long long>(kv_head * kHeadSize) * unsigned(sizes.context);
  Task task = {query + static_cast<unsigned long long>(first_head) * kHeadSize,
               key + cache_offset,
               value + cache_offset,
               key_scale + kv_head * kHeadSize,
               value_scale + kv_head * kHeadSize,
               list,
               out + static_cast<unsigned long long>(first_head) * kHeadSize,
               pieces,
               sums,
               sizes.context,
               min(sizes.heads_each, sizes.group - part * sizes.heads_each),
               count,
               split,
               sizes.splits,
               scale};
  attend<kHeads, kRuns, kCluster>(task, entry, forced_path, path_counts);
}

}  // namespace digits

#define DECODE_DIGITS(name, heads, runs, cluster)                                                                  \
  KERNEL_FACT(name, threads, digits::kThreads);                                                                    \
  KERNEL_FACT(name, smem_bytes, sizeof(digits::Smem<heads, runs, cluster>));                                       \
  KERNEL_FACT(name, tile, digits::kTile);                                                                          \
  KERNEL_FACT(name, step, digits::kRun* runs);                                                                     \
  KERNEL_FACT(name, max_cluster, cluster ? digits::kMaxCluster : 0);                                               \
  KERNEL_FACT(name, max_group, 16);                                                                                \
  KERNEL_FACT(name, head_size, digits::kHeadSize);                                                                 \
  KERNEL_FACT(name, heads_per_cta, 4 * heads);                                                                     \
  extern "C" __global__ void __launch_bounds__(digits::kThreads, 1)                                                \
      name(const __nv_bfloat16* __restrict__ query, const Code* __restrict__ key, const Code* __restrict__ value,  \
           const float* __restrict__ key_scale, const float* __restrict__ value_scale,                             \
           const int* __restrict__ selected, __nv_bfloat16* __restrict__ out, float4* pieces, float2* sums,        \
           int context, int candidates, int group, int heads_each, int splits, int tiles_each, int tiles_more,     \
           float scale, int forced_path, unsigned* path_counts) {                                                  \
    digits::decode<heads, runs, cluster>(query, key, value, key_scale, value_scale, selected, out, pieces, sums,   \
                                         {context, candidates, group, heads_each, splits, tiles_each, tiles_more}, \
                                         scale, forced_path, path_counts);                                         \
  }

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
DECODE_DIGITS(decode_digits_few, 1, 1, true)
DECODE_DIGITS(decode_digits_few_long, 1, 2, true)
DECODE_DIGITS(decode_digits, 3, 2, true)
DECODE_DIGITS(decode_digits_long, 3, 3, true)
DECODE_DIGITS(decode_digits_resident, 3, 2, false)
#else
DECODE_DIGITS(decode_digits_resident, 3, 1, false)
#endif
