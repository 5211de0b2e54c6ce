// SPDX-License-Identifier: MIT
// kernels/dsa/decode_digits.cu - decode attention of a few query rows over their gathered INT8 candidates in integer
// arithmetic, splits and merge in one kernel. The arithmetic is in digits.cuh.
#include "common/fact.cuh"
#include "dsa/digits.cuh"

namespace digits {

template <int kHeads, int kSlots, bool kCluster>
__device__ __forceinline__ void decode(const __nv_bfloat16* query, const Code* key, const Code* value,
                                       const float* key_scale, const float* value_scale, const int* selected,
                                       __nv_bfloat16* out, float* chunks, float2* head_sums, unsigned* arrived,
                                       int context, int candidates, int group, float scale, int forced_path,
                                       unsigned* path_counts) {
  const unsigned split = blockIdx.x, splits = gridDim.x, row = blockIdx.z;
  const int parts = (group + 4 * kHeads - 1) / (4 * kHeads);  // CTAs that share a group
  const int kv_head = blockIdx.y / parts, part = blockIdx.y % parts;
  const int heads = (group + parts - 1) / parts;
  const unsigned first_head = (row * (gridDim.y / parts) + kv_head) * group + part * heads;
  const size_t cache_offset = static_cast<size_t>(kv_head) * context * kHeadSize;
  const size_t merged = row * gridDim.y + blockIdx.y;  // number of what is merged
  const int tiles = (candidates + kTile - 1) / kTile;
  const Task task = {query + static_cast<size_t>(first_head) * kHeadSize,
                     key + cache_offset,
                     value + cache_offset,
                     key_scale + kv_head * kHeadSize,
                     value_scale + kv_head * kHeadSize,
                     selected + static_cast<size_t>(row) * candidates,
                     out + static_cast<size_t>(first_head) * kHeadSize,
                     chunks + merged * splits * (kHeadSize * 4 * kHeads),
                     head_sums + merged * splits * (4 * kHeads),
                     arrived + merged,
                     context,
                     min(heads, group - part * heads),
                     range_begin(tiles, split, splits) * kTile,
                     min(range_begin(tiles, split + 1, splits) * kTile, candidates),
                     static_cast<int>(split),
                     static_cast<int>(splits),
                     scale};
  attend<kHeads, kSlots, kCluster>(task, forced_path, path_counts);
}

}  // namespace digits

#define DECODE_DIGITS(name, heads, slots, cluster, resident)                                                           \
  KERNEL_FACT(name, threads, digits::kThreads);                                                                        \
  KERNEL_FACT(name, smem_bytes, sizeof(digits::Smem<heads, slots, cluster>));                                          \
  KERNEL_FACT(name, tile, digits::kTile);                                                                              \
  KERNEL_FACT(name, max_cluster, cluster ? digits::kMaxCluster : 0);                                                   \
  KERNEL_FACT(name, heads_per_cta, 4 * heads);                                                                         \
  extern "C" __global__ void __launch_bounds__(digits::kThreads, resident) name(                                       \
      const __nv_bfloat16* __restrict__ query, const Code* __restrict__ key, const Code* __restrict__ value,           \
      const float* __restrict__ key_scale, const float* __restrict__ value_scale, const int* __restrict__ selected,    \
      __nv_bfloat16* __restrict__ out, float* __restrict__ chunks, float2* __restrict__ head_sums,                     \
      unsigned* __restrict__ arrived, int context, int candidates, int group, float scale, int forced_path,            \
      unsigned* path_counts) {                                                                                         \
    digits::decode<heads, slots, cluster>(query, key, value, key_scale, value_scale, selected, out, chunks, head_sums, \
                                          arrived, context, candidates, group, scale, forced_path, path_counts);       \
  }

DECODE_DIGITS(digits_h3_s1, 3, 1, false, 1)
DECODE_DIGITS(digits_h3_s2, 3, 2, false, 1)
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
DECODE_DIGITS(digits_c_h1_s1, 1, 1, true, 1)
DECODE_DIGITS(digits_c_h2_s1, 2, 1, true, 1)
DECODE_DIGITS(digits_c_h3_s1, 3, 1, true, 1)
DECODE_DIGITS(digits_c_h3_s2, 3, 2, true, 1)
#endif
