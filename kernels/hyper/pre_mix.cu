// SPDX-License-Identifier: MIT
// kernels/hyper/pre_mix.cu - the elementwise kernels of the hyper-connection mix, with either sigmoid, and the check
// that the two are the same.
#include "common/fact.cuh"
#include "hyper/sigmoid.cuh"
#include "hyper/stream.cuh"

namespace hyper {

// pre_mix_branchy, pre_mix_branch_free - the gated mean of a row's branches.
//
// Computes  out[r, h] = bf16(1/4 * sum over b = 0..3, in this order, of sigmoid(up[r, b, h]) * normed[r, b, h]), FP32.
// Grid      (ceil(vectors / pre_mix_<form>_threads)), vectors = rows * hidden / 8. A thread owns 8 successive h of one
//           row, 8 loads of 16 bytes.
// Block     64 threads.
// Needs     sm_80+; 4 branches; hidden a multiple of 8; vectors < 2^31; every pointer 16-byte aligned.
//           A sum beyond FP32's range is infinite.
// Leaves    every element of out written.
namespace mix {
constexpr int kThreads = 64;
constexpr int kBranches = 4;

template <typename Form>
__device__ __forceinline__ void run(const uint4* normed, const uint4* up, uint4* out, unsigned vectors,
                                    unsigned row_vectors) {
  const unsigned i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= vectors) return;
  const size_t first = i + static_cast<size_t>(i / row_vectors) * ((kBranches - 1) * row_vectors);
  uint4 gates[kBranches], values[kBranches];
#pragma unroll
  for (int b = 0; b < kBranches; ++b) {
    gates[b] = load_once(up + first + b * row_vectors);
    values[b] = load_once(normed + first + b * row_vectors);
  }
  float sum[kWide] = {};
#pragma unroll
  for (int b = 0; b < kBranches; ++b) {
    float gate[kWide], value[kWide];
    unpack(gates[b], gate);
    unpack(values[b], value);
#pragma unroll
    for (int n = 0; n < kWide; ++n) sum[n] = __fmaf_rn(Form::sigmoid(gate[n]), value[n], sum[n]);
  }
#pragma unroll
  for (int n = 0; n < kWide; ++n) sum[n] *= 1.f / kBranches;
  store_once(out + i, pack(sum));
}
}  // namespace mix

// scaled_silu_branchy, scaled_silu_branch_free - the activation between the two low-rank projections.
//
// Computes  out[i] = bf16(silu(x[i] / 4)) for i < 8 * vectors.
// Grid      (ceil(vectors / scaled_silu_<form>_tile)). A thread owns vectors n and n + 64 of its CTA's tile: with 8192
//           rows of 320 all CTAs are resident at once, with both loads of a thread in flight.
// Block     64 threads.
// Needs     sm_80+; a multiple of 8 elements, vectors < 2^31; both pointers 16-byte aligned.
// Leaves    every element of out written.
namespace silu {
constexpr int kThreads = 64;
constexpr int kLoads = 2;
constexpr int kTile = kThreads * kLoads;

template <typename Form>
__device__ __forceinline__ void run(const uint4* __restrict__ x, uint4* __restrict__ out, unsigned vectors) {
  const unsigned first = blockIdx.x * kTile + threadIdx.x;
  uint4 loaded[kLoads];
#pragma unroll
  for (int n = 0; n < kLoads; ++n)
    if (first + n * kThreads < vectors) loaded[n] = x[first + n * kThreads];
#pragma unroll
  for (int n = 0; n < kLoads; ++n) {
    if (first + n * kThreads >= vectors) return;
    float value[kWide];
    unpack(loaded[n], value);
#pragma unroll
    for (int k = 0; k < kWide; ++k) value[k] = scaled_silu<Form>(value[k]);
    out[first + n * kThreads] = pack(value);
  }
}
}  // namespace silu

// sigmoid_differences - where the branch-free sigmoid has other bits than the branchy one.
//
// Computes  over the `patterns` FP32 bit patterns from `first` on (2^32 are all of them): how many give two different
//           results, NaN by its bits too, and the lowest such pattern.
// Grid      any, at least one CTA; its threads take the patterns in turn.
// Block     256 threads.
// Needs     count 8-byte and lowest 4-byte aligned; first + patterns <= 2^32; patterns >= 1.
// Leaves    *count increased by the number of differences, *lowest lowered to the lowest pattern among them.
namespace differences {
constexpr int kThreads = 256;
}  // namespace differences

}  // namespace hyper

KERNEL_FACT(pre_mix_branchy, threads, hyper::mix::kThreads);
KERNEL_FACT(pre_mix_branchy, smem_bytes, 0);
KERNEL_FACT(pre_mix_branch_free, threads, hyper::mix::kThreads);
KERNEL_FACT(pre_mix_branch_free, smem_bytes, 0);
KERNEL_FACT(scaled_silu_branchy, threads, hyper::silu::kThreads);
KERNEL_FACT(scaled_silu_branchy, smem_bytes, 0);
KERNEL_FACT(scaled_silu_branchy, tile, hyper::silu::kTile);
KERNEL_FACT(scaled_silu_branch_free, threads, hyper::silu::kThreads);
KERNEL_FACT(scaled_silu_branch_free, smem_bytes, 0);
KERNEL_FACT(scaled_silu_branch_free, tile, hyper::silu::kTile);
KERNEL_FACT(sigmoid_differences, threads, hyper::differences::kThreads);
KERNEL_FACT(sigmoid_differences, smem_bytes, 0);

extern "C" __global__ void __launch_bounds__(hyper::mix::kThreads)
    pre_mix_branchy(const uint4* __restrict__ normed,  // [rows, 4, hidden] bf16
                    const uint4* __restrict__ up,      // [rows, 4, hidden] bf16
                    uint4* __restrict__ out,           // [rows, hidden] bf16
                    unsigned vectors, unsigned row_vectors) {
  hyper::mix::run<hyper::Branchy>(normed, up, out, vectors, row_vectors);
}

extern "C" __global__ void __launch_bounds__(hyper::mix::kThreads)
    pre_mix_branch_free(const uint4* __restrict__ normed,  // [rows, 4, hidden] bf16
                        const uint4* __restrict__ up,      // [rows, 4, hidden] bf16
                        uint4* __restrict__ out,           // [rows, hidden] bf16
                        unsigned vectors, unsigned row_vectors) {
  hyper::mix::run<hyper::BranchFree>(normed, up, out, vectors, row_vectors);
}

extern "C" __global__ void __launch_bounds__(hyper::silu::kThreads)
    scaled_silu_branchy(const uint4* __restrict__ x,  // [rows, rank] bf16
                        uint4* __restrict__ out,      // [rows, rank] bf16
                        unsigned vectors) {
  hyper::silu::run<hyper::Branchy>(x, out, vectors);
}

extern "C" __global__ void __launch_bounds__(hyper::silu::kThreads)
    scaled_silu_branch_free(const uint4* __restrict__ x,  // [rows, rank] bf16
                            uint4* __restrict__ out,      // [rows, rank] bf16
                            unsigned vectors) {
  hyper::silu::run<hyper::BranchFree>(x, out, vectors);
}

extern "C" __global__ void __launch_bounds__(hyper::differences::kThreads)
    sigmoid_differences(unsigned first, unsigned long long patterns, unsigned long long* count, unsigned* lowest) {
  const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * hyper::differences::kThreads;
  unsigned long long found = 0;
  unsigned least = 0xffffffffu;
  for (unsigned long long n = static_cast<unsigned long long>(blockIdx.x) * hyper::differences::kThreads + threadIdx.x;
       n < patterns; n += step) {
    const unsigned pattern = first + static_cast<unsigned>(n);
    unsigned again = pattern;
    asm volatile("" : "+r"(again));  // so that the two share no subexpression, as they don't in the kernels
    const float one = hyper::sigmoid_branchy(__uint_as_float(pattern));
    const float other = hyper::sigmoid_branch_free(__uint_as_float(again));
    if (__float_as_uint(one) != __float_as_uint(other)) {
      ++found;
      least = min(least, pattern);
    }
  }
  if (found) {
    atomicAdd(count, found);
    atomicMin(lowest, least);
  }
}
