// SPDX-License-Identifier: MIT
// kernels/hyper/down.cu - the hyper-connection down projection behind gate_mul, for few rows and for many.
//
// Computes  out[r, n] = bf16(silu(1/4 * sum over k of weight[n, k] * x[r, k])), silu(y) = y / (1 + exp(-y)).
// Numerics  Products of BF16 numbers are summed in FP32 on the tensor cores, in an order that depends on the kernel but
//           not on the grid or on how it is launched: the same input always gives the same bits.
// Launch    May be launched programmatically behind the kernel that writes x: weight, which that kernel must not write,
//           is prefetched first; x is read and out written only after the grid before has finished.
// Needs     sm_80+; x, weight 16-byte and out 4-byte aligned; x, weight and out don't overlap.
// Leaves    every element of out written.
#include "common/fact.cuh"
#include "common/ptx.cuh"
#include "hyper/sigmoid.cuh"

namespace hyper {

__device__ __forceinline__ float activate(float sum) { return scaled_silu<BranchFree>(sum); }

// hyper_down_few - up to 8 rows: bound by reading weight and x once.
//
// Grid      (ceil(rank / hyper_down_few_tile)). CTA i owns outputs [3i, 3i + 3) of all rows: on an H200, 107 CTAs for
//           rank 320, one per SM, each with 61 KB of weight.
// Block     512 threads, hyper_down_few_smem_bytes of dynamic shared memory. Warp w sums channels [640w, 640w + 640);
//           thread 8n + r adds up what the warps found for row r and the CTA's output n, in the order of the warps.
// Needs     width 10240; 1 <= rows <= 8; rank >= 1.
namespace few {
constexpr int kWidth = 10240;
constexpr int kRows = 8;  // the N dimension of the MMA
constexpr int kTile = 3;  // outputs; they are rows 0..2 and 8..10 of the MMA's 16
constexpr int kWarps = 16;
constexpr int kThreads = 32 * kWarps;
constexpr int kStep = 32;                         // channels that a warp's loads of one vector per lane cover
constexpr int kSteps = kWidth / kWarps / kStep;   // of one warp
constexpr int kInFlight = 10;                     // vectors of x that a lane loads before it uses the first
constexpr int kPitch = kWidth / kWide + 4;        // vectors; 64 bytes more, so that rows 0 and 1 share no bank
constexpr int kChunks = kWidth / kWarps / kWide;  // vectors of one output that a warp prefetches
static_assert(kSteps % kInFlight == 0 && kInFlight % 2 == 0);

struct Smem {
  uint4 weight[kTile][kPitch];
  float sums[kWarps][kTile][kRows];
};

// The channels of an MMA may be any 16, as long as both operands agree, and its rows and columns do not mix. So lane
// 4g + t loads channels 32s + 8t .. + 7 of row g with one access, for two MMAs. Words 0 and 2 of weight are row g of
// the first operand and words 1 and 3 row g + 8: with words 0 and 2 of x the sum is row g, with words 1 and 3 it is row
// g + 8. What the other rows hold, and those of lanes without an output or a row of x, is not read.
__device__ __forceinline__ void run(const uint4* __restrict__ weight, const uint4* x, __nv_bfloat16* out, int rows,
                                    int rank, Smem& smem) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int first_output = blockIdx.x * kTile, first_vector = warp * kChunks;
#pragma unroll
  for (int j = 0; j < (kTile * kChunks + 31) / 32; ++j) {
    const int i = lane + 32 * j, n = i / kChunks, vector = first_vector + i % kChunks;
    const int output = min(first_output + n, rank - 1);  // beyond the last: its double, which is not stored
    cp_async_16(shared_address(&smem.weight[n][vector]),
                weight + static_cast<size_t>(output) * (kWidth / kWide) + vector, kTile * kChunks - 1 - i);
  }
  cp_async_commit();

  pdl_wait();

  const uint4* row = x + min(g, rows - 1) * (kWidth / kWide) + first_vector + t;
  const uint4* output = &smem.weight[min(g, kTile - 1)][first_vector + t];
  float even[2][4] = {}, odd[2][4] = {};  // independent sums, as an MMA takes some 33 cycles
#pragma unroll
  for (int batch = 0; batch < kSteps; batch += kInFlight) {
    uint4 loaded[kInFlight];
#pragma unroll
    for (int s = 0; s < kInFlight; ++s) loaded[s] = __ldcg(row + (batch + s) * (kStep / kWide));
    if (batch == 0 && rows > 0) {  // always; without a branch ptxas waits for weight before it loads x
      cp_async_wait<0>();          // my copies of weight have landed
      __syncwarp();                // and those of my warp, the only ones that I read
    }
#pragma unroll
    for (int s = 0; s < kInFlight; ++s) {
      const uint4 w = output[(batch + s) * (kStep / kWide)];
      const unsigned a[4] = {w.x, w.y, w.z, w.w};
      mma_bf16_m16n8k16(even[s % 2], a, loaded[s].x, loaded[s].z);
      mma_bf16_m16n8k16(odd[s % 2], a, loaded[s].y, loaded[s].w);
    }
  }
  if (g < kTile) {
#pragma unroll
    for (int e = 0; e < 2; ++e)
      smem.sums[warp][g][2 * t + e] = (even[0][e] + odd[0][2 + e]) + (even[1][e] + odd[1][2 + e]);
  }
  __syncthreads();  // the sums of all warps are published
  if (threadIdx.x >= kTile * kRows) return;
  const int n = threadIdx.x / kRows, r = threadIdx.x % kRows;
  float sum = 0.f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += smem.sums[w][n][r];
  if (r < rows && first_output + n < rank)
    out[static_cast<size_t>(r) * rank + first_output + n] = __float2bfloat16_rn(activate(sum));
}
}  // namespace few

// hyper_down_many - any number of rows: a tiled GEMM.
//
// Grid      (ceil(rank / hyper_down_many_tile), ceil(rows / hyper_down_many_tile_rows)). CTA (i, j) owns outputs
//           [160i, 160i + 160) of rows [128j, 128j + 128).
// Block     256 threads, hyper_down_many_smem_bytes of dynamic shared memory, which every GPU from sm_86 on has. Warp w
//           owns rows [32 * (w / 2), + 32) and outputs [80 * (w % 2), + 80) of the tile.
// Needs     width a positive multiple of 32; rank even; rows >= 1.
namespace many {
constexpr int kRows = 128;
constexpr int kTile = 160;
constexpr int kThreads = 256;
constexpr int kDepth = 32;  // channels of a stage
constexpr int kChunks = kDepth / kWide;
constexpr int kStages = 5;
constexpr int kWarpRows = 32, kWarpTile = 80;

// 16-byte chunk c of line i stands at c ^ (i / 2 % 4): the 8 lines of an ldmatrix cover all banks once.
struct Smem {
  uint4 x[kStages][kRows][kChunks];
  uint4 weight[kStages][kTile][kChunks];
};
static_assert(sizeof(Smem) <= 99 * 1024, "sm_86 and sm_120 have 99 KiB per CTA");

// Lines [first, first + kLines) of a matrix, at channels [32 * step, + 32). A line past the last is the last's double.
template <int kLines>
__device__ __forceinline__ void copy(uint4 (&stage)[kLines][kChunks], const uint4* matrix, int first, int lines,
                                     int width, int step) {
#pragma unroll
  for (int n = 0; n < (kLines * kChunks + kThreads - 1) / kThreads; ++n) {
    const int i = threadIdx.x + n * kThreads, line = i / kChunks, chunk = i % kChunks;
    if (kLines * kChunks % kThreads != 0 && line >= kLines) break;
    const size_t source = static_cast<size_t>(min(first + line, lines - 1)) * (width / kWide);
    cp_async_16(shared_address(&stage[line][chunk ^ (line / 2 % 4)]), matrix + source + step * kChunks + chunk);
  }
}

template <int kLines>
__device__ __forceinline__ unsigned address(const uint4 (&stage)[kLines][kChunks], int line, int chunk) {
  return shared_address(&stage[line][chunk ^ (line / 2 % 4)]);
}

__device__ __forceinline__ void run(const uint4* weight, const uint4* x, __nv_bfloat16* out, int rows, int rank,
                                    int width, Smem& smem) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first_output = blockIdx.x * kTile, first_row = blockIdx.y * kRows;
  const int steps = width / kDepth;
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s)
    if (s < steps) copy(smem.weight[s], weight, first_output, rank, width, s);

  pdl_wait();

#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < steps) copy(smem.x[s], x, first_row, rows, width, s);
    cp_async_commit();  // the first group holds weight's stages too
  }

  const int warp_row = warp / 2 * kWarpRows, warp_output = warp % 2 * kWarpTile;
  float sums[2][kWarpTile / 8][4] = {};  // [16 rows][8 outputs][C fragment]
  for (int i = 0; i < steps; ++i) {
    cp_async_wait<kStages - 2>();  // my copies of stage i have landed
    __syncthreads();               // everyone's have; and everyone is done with stage i - 1, which may be refilled
    if (const int ahead = i + kStages - 1; ahead < steps) {
      copy(smem.weight[ahead % kStages], weight, first_output, rank, width, ahead);
      copy(smem.x[ahead % kStages], x, first_row, rows, width, ahead);
    }
    cp_async_commit();  // also past the end, so that groups count stages
    const auto& lines = smem.x[i % kStages];
    const auto& outputs = smem.weight[i % kStages];
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) {
      unsigned a[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) ldmatrix_x4(a[m], address(lines, warp_row + 16 * m + lane % 16, 2 * k + lane / 16));
#pragma unroll
      for (int n = 0; n < kWarpTile / 16; ++n) {
        unsigned b[4];
        ldmatrix_x4(b, address(outputs, warp_output + 16 * n + lane % 8 + 8 * (lane / 16), 2 * k + lane / 8 % 2));
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          mma_bf16_m16n8k16(sums[m][2 * n], a[m], b[0], b[1]);
          mma_bf16_m16n8k16(sums[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

#pragma unroll
  for (int m = 0; m < 2; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + warp_row + 16 * m + 8 * half + lane / 4;
      if (row >= rows) continue;
#pragma unroll
      for (int n = 0; n < kWarpTile / 8; ++n) {
        const int output = first_output + warp_output + 8 * n + 2 * (lane % 4);
        if (output < rank)
          *reinterpret_cast<unsigned*>(out + static_cast<size_t>(row) * rank + output) =
              bf16x2_bits(activate(sums[m][n][2 * half]), activate(sums[m][n][2 * half + 1]));
      }
    }
}
}  // namespace many

}  // namespace hyper

KERNEL_FACT(hyper_down_few, threads, hyper::few::kThreads);
KERNEL_FACT(hyper_down_few, smem_bytes, sizeof(hyper::few::Smem));
KERNEL_FACT(hyper_down_few, tile, hyper::few::kTile);
KERNEL_FACT(hyper_down_few, max_rows, hyper::few::kRows);
KERNEL_FACT(hyper_down_few, width, hyper::few::kWidth);
KERNEL_FACT(hyper_down_many, threads, hyper::many::kThreads);
KERNEL_FACT(hyper_down_many, smem_bytes, sizeof(hyper::many::Smem));
KERNEL_FACT(hyper_down_many, tile, hyper::many::kTile);
KERNEL_FACT(hyper_down_many, tile_rows, hyper::many::kRows);
KERNEL_FACT(hyper_down_many, depth, hyper::many::kDepth);

extern "C" __global__ void __launch_bounds__(hyper::few::kThreads)
    hyper_down_few(const uint4* __restrict__ weight,  // [rank, 10240] bf16
                   const uint4* x,                    // [rows, 10240] bf16; written by the grid before, so not const
                   __nv_bfloat16* out,                // [rows, rank] bf16
                   int rows, int rank) {
  extern __shared__ __align__(16) unsigned char smem_bytes[];
  hyper::few::run(weight, x, out, rows, rank, *reinterpret_cast<hyper::few::Smem*>(smem_bytes));
}

extern "C" __global__ void __launch_bounds__(hyper::many::kThreads)
    hyper_down_many(const uint4* __restrict__ weight,  // [rank, width] bf16
                    const uint4* x,                    // [rows, width] bf16; as above
                    __nv_bfloat16* out,                // [rows, rank] bf16
                    int rows, int rank, int width) {
  extern __shared__ __align__(16) unsigned char smem_bytes[];
  hyper::many::run(weight, x, out, rows, rank, width, *reinterpret_cast<hyper::many::Smem*>(smem_bytes));
}
