// SPDX-License-Identifier: MIT
// kernels/ceiling.cu - what the memory system allows, measured in the same rounds as the kernels that it bounds.
#include "common/fact.cuh"
#include "common/ptx.cuh"
#include "dsa/cache.cuh"

// copy_only - a plain copy, 16 bytes per access. Its ceiling counts the bytes read plus the bytes written.
//
// Computes  target[i] = source[i] for i < vectors, in units of 16 bytes.
// Grid      (ceil(vectors / copy_only_tile)). A CTA copies one tile, with all loads of a thread in flight at once.
// Block     256 threads.
// Needs     both pointers 16-byte aligned, no overlap.
namespace copy {
constexpr int kThreads = 256;
constexpr int kLoads = 4;
constexpr int kTile = kThreads * kLoads;
}  // namespace copy

KERNEL_FACT(copy_only, threads, copy::kThreads);
KERNEL_FACT(copy_only, smem_bytes, 0);
KERNEL_FACT(copy_only, tile, copy::kTile);

extern "C" __global__ void __launch_bounds__(copy::kThreads)
    copy_only(const uint4* __restrict__ source, uint4* __restrict__ target, long long vectors) {
  using namespace copy;
  const long long first = static_cast<long long>(blockIdx.x) * kTile + threadIdx.x;
  uint4 x[kLoads];
#pragma unroll
  for (int n = 0; n < kLoads; ++n)
    if (first + n * kThreads < vectors) x[n] = source[first + n * kThreads];
#pragma unroll
  for (int n = 0; n < kLoads; ++n)
    if (first + n * kThreads < vectors) target[first + n * kThreads] = x[n];
}

// gather_only - copies exactly the K and V bytes of a cell's candidates into shared memory and does nothing with them.
//
// Grid      (rows, kv_heads, splits), as of the attention kernels: measure it at the best number of splits. CTA
//           (r, g, s) copies candidates [candidates * s / splits, candidates * (s + 1) / splits) of row r from KV head
//           g.
// Block     128 threads, gather_only_smem_bytes of dynamic shared memory: one slot for a tile of K and one for V, so 6
//           CTAs fit an sm_90 SM. A thread copies to places of its own, so its own wait is all that a slot needs.
// Needs     sm_80+; head size 256; key and value 16-byte aligned. An entry that is no candidate reads nothing.
// Leaves    nothing.
namespace gather {
constexpr int kThreads = 128;
constexpr int kTile = 64;
constexpr int kHeadSize = 256;
constexpr int kPass = kThreads / (kHeadSize / 16);  // rows that the CTA copies at once, 16 bytes per thread
constexpr int kRows = kTile / kPass;                // rows of a tile to which one thread contributes

struct Smem {
  Code key[kTile][kHeadSize], value[kTile][kHeadSize];
};

__device__ __forceinline__ void copy_rows(const Code* head, Code (&slot)[kTile][kHeadSize],
                                          const int (&position)[kRows]) {
  const int chunk = threadIdx.x % 16, first = threadIdx.x / 16;
#pragma unroll
  for (int n = 0; n < kRows; ++n)
    cp_async_16(shared_address(&slot[first + n * kPass][16 * chunk]),
                cache_row(head, position[n], kHeadSize) + 16 * chunk, position[n]);
  cp_async_commit();
}
}  // namespace gather

KERNEL_FACT(gather_only, threads, gather::kThreads);
KERNEL_FACT(gather_only, smem_bytes, sizeof(gather::Smem));
KERNEL_FACT(gather_only, tile, gather::kTile);
KERNEL_FACT(gather_only, head_size, gather::kHeadSize);

extern "C" __global__ void __launch_bounds__(gather::kThreads)
    gather_only(const Code* __restrict__ key,      // [kv_heads, context, 256]
                const Code* __restrict__ value,    // [kv_heads, context, 256]
                const int* __restrict__ selected,  // [rows, candidates]
                int context, int candidates) {
  using namespace gather;
  extern __shared__ __align__(128) unsigned char smem_bytes[];
  Smem& smem = *reinterpret_cast<Smem*>(smem_bytes);

  const size_t cache_offset = static_cast<size_t>(blockIdx.y) * context * kHeadSize;
  const int* list = selected + static_cast<size_t>(blockIdx.x) * candidates;
  const int end = range_begin(candidates, blockIdx.z + 1, gridDim.z);
  int next[kRows];  // entries of the tile to come
  const auto load_entries = [&](int tile) {
#pragma unroll
    for (int n = 0; n < kRows; ++n) next[n] = load_entry(list, tile + threadIdx.x / 16 + n * kPass, end);
  };

  const int begin = range_begin(candidates, blockIdx.z, gridDim.z);
  load_entries(begin);
  for (int tile = begin; tile < end; tile += kTile) {
    int position[kRows];
#pragma unroll
    for (int n = 0; n < kRows; ++n) position[n] = candidate_or_none(next[n], context);
    load_entries(tile + kTile);
    cp_async_wait<1>();  // my part of the K slot has landed; V may be in flight
    copy_rows(key + cache_offset, smem.key, position);
    cp_async_wait<1>();  // my part of the V slot has landed; K is in flight
    copy_rows(value + cache_offset, smem.value, position);
  }
  cp_async_wait<0>();
}
