// SPDX-License-Identifier: MIT
// kernels/dsa/decode_int8_tc.cu - split-KV attention of a few query rows over their gathered INT8 candidates, on tensor
// cores. The arithmetic is in int8_tc.cuh; merge_partials combines what this kernel leaves.
//
// Computes  m, l and acc of int8_tc.cuh for row r, query head h and split s, over the candidates of the tiles of s.
// Grid      (rows, kv_heads, splits), splits >= 1. CTA (r, g, s) owns query heads [g * group, (g + 1) * group) and the
//           tiles [tiles * s / splits, tiles * (s + 1) / splits) of tiles = ceil(candidates / 64).
// Block     128 threads, decode_int8_tc_smem_bytes of dynamic shared memory.
// Debug     forced_path: -1 chooses by the inputs; 0, 1, 2 take that path of int8_tc.cuh (half, digits, single) in
//           every CTA, also one whose conditions the inputs break. path_counts, unless null: each CTA adds 1 to the
//           counter of the path that it ended on; decode_int8_tc_paths counters, zeroed by the caller.
// Needs     sm_80+; head size 256; 1 <= group <= 16; 0 <= scale <= 1; candidates <= 2^20; query, key, value, both
//           scales and acc 16-byte aligned.
//           An entry of `selected` outside [0, context) is no candidate, wherever it stands; duplicates count twice.
// Leaves    every (r, h, s) of acc, m and l written; a split without a candidate gives 0, -inf and 0, never NaN.
//           What infinite and NaN inputs give is in int8_tc.cuh.
//           Lets a dependent launch start before the end; the dependent waits for the whole grid before it reads.
#include "common/fact.cuh"
#include "dsa/int8_tc.cuh"

KERNEL_FACT(decode_int8_tc, threads, int8_tc::kThreads);
KERNEL_FACT(decode_int8_tc, smem_bytes, sizeof(int8_tc::Smem<true>));
KERNEL_FACT(decode_int8_tc, tile, int8_tc::kTile);
KERNEL_FACT(decode_int8_tc, max_group, int8_tc::kMaxGroup);
KERNEL_FACT(decode_int8_tc, head_size, int8_tc::kHeadSize);
KERNEL_FACT(decode_int8_tc, paths, int8_tc::kPaths);
KERNEL_FACT(decode_int8_tc, path_half, int8_tc::kHalf);
KERNEL_FACT(decode_int8_tc, path_digits, int8_tc::kDigitsPath);
KERNEL_FACT(decode_int8_tc, path_single, int8_tc::kSingle);

namespace int8_tc {

// Where the partials of one CTA go.
struct Partials {
  float *acc, *m, *l;
  unsigned* path_counts;
  unsigned first_head, split, splits;

  __device__ __forceinline__ size_t at(int head) const {
    return static_cast<size_t>(first_head + head) * splits + split;
  }
  __device__ __forceinline__ void put_head(int head, float max, float sum) const {
    m[at(head)] = max;
    l[at(head)] = sum;
  }
  template <typename Vector>  // of floats
  __device__ __forceinline__ void put_acc(int head, int channel, Vector x, float) const {
    *reinterpret_cast<Vector*>(acc + at(head) * kHeadSize + channel) = x;
  }
  __device__ __forceinline__ void put_path(Path path) const {
    if (path_counts != nullptr && threadIdx.x == 0) atomicAdd(path_counts + path, 1u);
  }
};

}  // namespace int8_tc

extern "C" __global__ void __launch_bounds__(int8_tc::kThreads,
                                             3)              // 3: what registers and shared memory allow on sm_90
    decode_int8_tc(const __nv_bfloat16* __restrict__ query,  // [rows, query_heads, 256]
                   const Code* __restrict__ key,             // [kv_heads, context, 256]
                   const Code* __restrict__ value,           // [kv_heads, context, 256]
                   const float* __restrict__ key_scale,      // [kv_heads, 256]
                   const float* __restrict__ value_scale,    // [kv_heads, 256]
                   const int* __restrict__ selected,         // [rows, candidates]
                   float* __restrict__ acc,                  // [rows, query_heads, splits, 256]
                   float* __restrict__ m,                    // [rows, query_heads, splits]
                   float* __restrict__ l,                    // [rows, query_heads, splits]
                   int context, int candidates, int group, float scale, int forced_path, unsigned* path_counts) {
  using namespace int8_tc;
  extern __shared__ __align__(alignof(Smem<true>)) unsigned char smem_bytes[];
  Smem<true>& smem = *reinterpret_cast<Smem<true>*>(smem_bytes);

  const unsigned row = blockIdx.x, kv_head = blockIdx.y, split = blockIdx.z, splits = gridDim.z;
  const unsigned first_head = (row * gridDim.y + kv_head) * group;  // of rows * query_heads < 2^31
  const size_t cache_offset = static_cast<size_t>(kv_head) * context * kHeadSize;
  const int tiles = (candidates + kTile - 1) / kTile;
  const Task task = {query + static_cast<size_t>(first_head) * kHeadSize,
                     key + cache_offset,
                     value + cache_offset,
                     key_scale + kv_head * kHeadSize,
                     value_scale + kv_head * kHeadSize,
                     selected + static_cast<size_t>(row) * candidates,
                     context,
                     candidates,
                     group,
                     range_begin(tiles, split, splits),
                     range_begin(tiles, split + 1, splits),
                     scale};

  Attention<true> attention(task, smem);
  attention.run(forced_path, [&] {
    const uint3 cta = block_index(), grid = grid_size();
    return Partials{acc, m, l, path_counts, (cta.x * grid.y + cta.y) * group, cta.z, grid.z};
  });
}
