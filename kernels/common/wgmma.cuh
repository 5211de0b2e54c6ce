// SPDX-License-Identifier: MIT
// kernels/common/wgmma.cuh - INT8 products of a warpgroup with both operands in shared memory. sm_90a only.
//
// An operand is K-major in the layout of the 128-byte swizzle: rows of 128 bytes whose 16-byte chunk c lies at chunk
// c ^ (row % 8), 1024-byte aligned. 256 channels are two such arrays, kWgmmaHalf bytes apart for a and, as it has as
// many rows as the product has columns, 128 * columns for b.
#pragma once

#include "common/ptx.cuh"

constexpr int kWgmmaHalf = 16384;

// What wgmma takes for an address: start and stride of 8 rows in units of 16 bytes, and the swizzle.
__device__ __forceinline__ unsigned long long wgmma_operand(unsigned address) {
  return address >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// wgmma_256(c, a, b): c = the products over 256 channels of 64 rows of a, of which warp w of the warpgroup has
// 16w + g and 16w + g + 8, and all columns of b. Lane 4g + t holds c[4n .. 4n + 1] = C[16w + g][8n + 2t .. 8n + 2t + 1]
// and c[4n + 2 .. 4n + 3] those of row 16w + g + 8. wgmma_wait and wgmma_done come before c is read. The first step of
// 32 channels overwrites c: accumulators zeroed outside would make the compiler run the steps one after the other.
#define WGMMA_STEP(columns, registers, operand_a, operand_b, offset_a, offset_b, accumulate) \
  "add.s64 a, " operand_a ", " offset_a                                                      \
  ";\n"                                                                                      \
  "add.s64 b, " operand_b ", " offset_b                                                      \
  ";\n"                                                                                      \
  "wgmma.mma_async.sync.aligned.m64n" columns "k32.s32.s8.s8 {" registers "}, a, b, " accumulate ";\n"

#define WGMMA_256(columns, half_b, registers, a, b)                                                               \
  "{ .reg .pred no, yes;\n .reg .b64 a, b;\n"                                                                     \
  "setp.ne.b32 no, 0, 0;\n setp.eq.b32 yes, 0, 0;\n"                                                              \
  "wgmma.fence.sync.aligned;\n" WGMMA_STEP(columns, registers, a, b, "0", "0", "no")                              \
      WGMMA_STEP(columns, registers, a, b, "2", "2", "yes") WGMMA_STEP(columns, registers, a, b, "4", "4", "yes") \
          WGMMA_STEP(columns, registers, a, b, "6", "6", "yes")                                                   \
              WGMMA_STEP(columns, registers, a, b, "1024", half_b, "yes")                                         \
                  WGMMA_STEP(columns, registers, a, b, "1026", half_b " + 2", "yes")                              \
                      WGMMA_STEP(columns, registers, a, b, "1028", half_b " + 4", "yes") WGMMA_STEP(              \
                          columns, registers, a, b, "1030", half_b " + 6", "yes") "wgmma.commit_group.sync.aligned; }"

#define WGMMA_OUT_8(c, n)                                                                                            \
  "=&r"(c[n]), "=&r"(c[n + 1]), "=&r"(c[n + 2]), "=&r"(c[n + 3]), "=&r"(c[n + 4]), "=&r"(c[n + 5]), "=&r"(c[n + 6]), \
      "=&r"(c[n + 7])
#define WGMMA_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define WGMMA_16 WGMMA_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_24 WGMMA_16 ", %16, %17, %18, %19, %20, %21, %22, %23"

__device__ __forceinline__ void wgmma_256(int (&c)[8], unsigned long long a, unsigned long long b) {
  asm volatile(WGMMA_256("16", "128", WGMMA_8, "%8", "%9") : WGMMA_OUT_8(c, 0) : "l"(a), "l"(b) : "memory");
}

__device__ __forceinline__ void wgmma_256(int (&c)[24], unsigned long long a, unsigned long long b) {
  asm volatile(WGMMA_256("48", "384", WGMMA_24, "%24", "%25")
               : WGMMA_OUT_8(c, 0), WGMMA_OUT_8(c, 8), WGMMA_OUT_8(c, 16)
               : "l"(a), "l"(b)
               : "memory");
}

// Waits until at most kPending of the latest runs of products are still at work; and then c may be read.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
template <int kCount>
__device__ __forceinline__ void wgmma_done(int (&c)[kCount]) {
#pragma unroll
  for (int n = 0; n < kCount; ++n) asm volatile("" : "+r"(c[n]));
}

// A run of products with a in registers: wgmma_begin, wgmma_32 .., wgmma_commit; a is not written before wgmma_wait.
// wgmma_32(c, a, b): c = a * b over 32 channels, b unsigned; wgmma_add_32: c += a * b. Of its warp's 16 rows a lane has
// the operand of mma_m16n8k32, and c as above. 32 channels further in b are 2 more.
__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

#define WGMMA_SUM_8(access, c, n)                                                                         \
  access(c[n]), access(c[n + 1]), access(c[n + 2]), access(c[n + 3]), access(c[n + 4]), access(c[n + 5]), \
      access(c[n + 6]), access(c[n + 7])
#define WGMMA_SUMS_8(access, c) WGMMA_SUM_8(access, c, 0)
#define WGMMA_SUMS_24(access, c) WGMMA_SUM_8(access, c, 0), WGMMA_SUM_8(access, c, 8), WGMMA_SUM_8(access, c, 16)
#define WGMMA_32(name, count, columns, access, a0, a1, a2, a3, operand_b, adds)                                  \
  __device__ __forceinline__ void name(int (&c)[count], const unsigned (&a)[4], unsigned long long b) {          \
    asm volatile("{ .reg .pred adds; setp.ne.b32 adds, " adds ", 0;\n wgmma.mma_async.sync.aligned.m64n" columns \
                 "k32.s32.s8.u8 {" WGMMA_##count "}, {" a0 ", " a1 ", " a2 ", " a3 "}, " operand_b ", adds; }"   \
                 : WGMMA_SUMS_##count(access, c)                                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                          \
  }
WGMMA_32(wgmma_32, 8, "16", "=r", "%8", "%9", "%10", "%11", "%12", "0")
WGMMA_32(wgmma_add_32, 8, "16", "+r", "%8", "%9", "%10", "%11", "%12", "1")
WGMMA_32(wgmma_32, 24, "48", "=r", "%24", "%25", "%26", "%27", "%28", "0")
WGMMA_32(wgmma_add_32, 24, "48", "+r", "%24", "%25", "%26", "%27", "%28", "1")

#undef WGMMA_SUM_8
#undef WGMMA_SUMS_8
#undef WGMMA_SUMS_24
#undef WGMMA_32
#undef WGMMA_STEP
#undef WGMMA_256
#undef WGMMA_OUT_8
#undef WGMMA_8
#undef WGMMA_16
#undef WGMMA_24
