// SPDX-License-Identifier: MIT
// kernels/hyper/gate_mul.cu - the gated attention output, in front of the hyper-connection down projection (down.cu).
//
// gate_mul, gate_mul_early
// Computes  x[r, c] = bf16(attn[r, c] * sigmoid(gate[r, c])) for c < gated, in FP32; x has rows of `width` elements.
// Grid      (ceil(vectors / gate_mul_threads)), vectors = rows * gated / 8. A thread owns 8 successive c of one row.
// Block     64 threads.
// Launch    The successor may be launched programmatically: gate_mul releases it after a thread's store, which is when
//           nearly everything is done, gate_mul_early with its first instruction, so that the successor can start and
//           prefetch what this kernel does not write once all CTAs of this one run. Either way the successor must wait
//           before it reads x. Itself it waits for nobody, so it must not be launched programmatically.
// Needs     sm_80+; gated and width multiples of 8, gated <= width; vectors < 2^31; every pointer 16-byte aligned.
// Leaves    columns [0, gated) of x written, the others as they were.
#include "common/fact.cuh"
#include "common/ptx.cuh"
#include "hyper/sigmoid.cuh"

namespace hyper {
namespace gate {
constexpr int kThreads = 64;

__device__ __forceinline__ void run(const uint4* __restrict__ attn, const uint4* __restrict__ gate,
                                    uint4* __restrict__ x, unsigned vectors, unsigned gated_vectors,
                                    unsigned width_vectors) {
  const unsigned i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= vectors) return;
  const uint4 gates = gate[i], values = attn[i];
  float g[kWide], v[kWide];
  unpack(gates, g);
  unpack(values, v);
#pragma unroll
  for (int n = 0; n < kWide; ++n) v[n] = __fmul_rn(v[n], sigmoid_branch_free(g[n]));
  x[i + static_cast<size_t>(i / gated_vectors) * (width_vectors - gated_vectors)] = pack(v);
}
}  // namespace gate
}  // namespace hyper

KERNEL_FACT(gate_mul, threads, hyper::gate::kThreads);
KERNEL_FACT(gate_mul, smem_bytes, 0);
KERNEL_FACT(gate_mul_early, threads, hyper::gate::kThreads);
KERNEL_FACT(gate_mul_early, smem_bytes, 0);

extern "C" __global__ void __launch_bounds__(hyper::gate::kThreads)
    gate_mul(const uint4* __restrict__ attn,  // [rows, gated] bf16
             const uint4* __restrict__ gate,  // [rows, gated] bf16
             uint4* __restrict__ x,           // [rows, width] bf16
             unsigned vectors, unsigned gated_vectors, unsigned width_vectors) {
  hyper::gate::run(attn, gate, x, vectors, gated_vectors, width_vectors);
  pdl_launch_dependents();
}

extern "C" __global__ void __launch_bounds__(hyper::gate::kThreads)
    gate_mul_early(const uint4* __restrict__ attn,  // [rows, gated] bf16
                   const uint4* __restrict__ gate,  // [rows, gated] bf16
                   uint4* __restrict__ x,           // [rows, width] bf16
                   unsigned vectors, unsigned gated_vectors, unsigned width_vectors) {
  pdl_launch_dependents();
  hyper::gate::run(attn, gate, x, vectors, gated_vectors, width_vectors);
}
