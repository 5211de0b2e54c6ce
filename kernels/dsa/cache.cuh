// SPDX-License-Identifier: MIT
// kernels/dsa/cache.cuh - the INT8 KV cache and the list of candidates, as every sparse-attention kernel reads them.
#pragma once

using Code = signed char;  // one INT8 code of the cache: [kv_heads, context, head_size]

// Entry `entry` of a row's list: a position, or -1 past `end`, where nothing is read (a list may end its allocation).
__device__ __forceinline__ int load_entry(const int* __restrict__ list, int entry, int end) {
  return entry < end ? __ldg(list + entry) : -1;
}

// An entry is a candidate iff it lies in [0, context), wherever it stands; every other value becomes -1.
__device__ __forceinline__ int candidate_or_none(int entry, int context) {
  return static_cast<unsigned>(entry) < static_cast<unsigned>(context) ? entry : -1;
}

// The row of the cache at `position`. 64 bits wide: a head may hold more than 2^31 bytes. For no candidate (-1) it is
// an address that may be formed but not read.
__device__ __forceinline__ const Code* cache_row(const Code* head, int position, int head_size) {
  return head + static_cast<unsigned long long>(static_cast<unsigned>(position)) * head_size;
}

// First item of part `part` when `items` are cut into `parts` contiguous ranges: floor(items * part / parts), without
// the product that could pass 2^32. parts < 2^16, as a grid's z dimension is.
__device__ __forceinline__ int range_begin(unsigned items, unsigned part, unsigned parts) {
  return items / parts * part + items % parts * part / parts;
}
