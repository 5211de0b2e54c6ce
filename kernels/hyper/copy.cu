// SPDX-License-Identifier: MIT
// kernels/hyper/copy.cu - what the memory system allows an elementwise kernel, measured in the same rounds as it.
#include "common/fact.cuh"
#include "hyper/stream.cuh"

// copy_1_to_1 - a plain copy, 16 bytes per access.
//
// Computes  target[i] = source[i] for i < vectors, in units of 16 bytes.
// Grid      (ceil(vectors / copy_1_to_1_tile)). A CTA copies one tile, a thread vectors n and n + 128 of it.
// Block     128 threads.
// Needs     both pointers 16-byte aligned, no overlap; vectors < 2^31.
// Leaves    every vector of target written.
namespace one_to_one {
constexpr int kThreads = 128;
constexpr int kTile = 2 * kThreads;
}  // namespace one_to_one

// copy_8_to_1 - as many bytes read and written as by pre_mix, and nothing computed but what keeps the loads alive.
//
// Computes  target[i] = source[i] ^ source[vectors + i] ^ ... ^ source[7 * vectors + i] for i < vectors.
// Grid      (ceil(vectors / copy_8_to_1_tile)). A thread owns one i, with its 8 loads in flight at once.
// Block     256 threads.
// Needs     both pointers 16-byte aligned, no overlap; vectors < 2^31.
// Leaves    every vector of target written.
namespace eight_to_one {
constexpr int kThreads = 256;
constexpr int kReads = 8;
}  // namespace eight_to_one

KERNEL_FACT(copy_1_to_1, threads, one_to_one::kThreads);
KERNEL_FACT(copy_1_to_1, smem_bytes, 0);
KERNEL_FACT(copy_1_to_1, tile, one_to_one::kTile);
KERNEL_FACT(copy_8_to_1, threads, eight_to_one::kThreads);
KERNEL_FACT(copy_8_to_1, smem_bytes, 0);
KERNEL_FACT(copy_8_to_1, tile, eight_to_one::kThreads);

extern "C" __global__ void __launch_bounds__(one_to_one::kThreads)
    copy_1_to_1(const uint4* __restrict__ source, uint4* __restrict__ target, unsigned vectors) {
  using namespace one_to_one;
  const unsigned first = blockIdx.x * kTile + threadIdx.x, second = first + kThreads;
  uint4 x, y;
  if (first < vectors) x = source[first];
  if (second < vectors) y = source[second];
  if (first < vectors) target[first] = x;
  if (second < vectors) target[second] = y;
}

extern "C" __global__ void __launch_bounds__(eight_to_one::kThreads)
    copy_8_to_1(const uint4* __restrict__ source,  // [8, vectors]
                uint4* __restrict__ target,        // [vectors]
                unsigned vectors) {
  using namespace eight_to_one;
  const unsigned i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= vectors) return;
  uint4 x[kReads];
#pragma unroll
  for (int n = 0; n < kReads; ++n) x[n] = load_once(source + i + static_cast<size_t>(n) * vectors);
#pragma unroll
  for (int n = 1; n < kReads; ++n) {
    x[0].x ^= x[n].x;
    x[0].y ^= x[n].y;
    x[0].z ^= x[n].z;
    x[0].w ^= x[n].w;
  }
  store_once(target + i, x[0]);
}
