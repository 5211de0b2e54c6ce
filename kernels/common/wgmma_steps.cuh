// SPDX-License-Identifier: MIT
// kernels/common/wgmma_steps.cuh - INT8 products of a warpgroup with both operands in shared memory, by steps of 32
// channels: for operands that lie otherwise than wgmma.cuh has them, and work between a product's start and its wait.
// sm_90a only.
//
// An operand is K-major in the layout of the 128-byte swizzle, as there: rows of 128 bytes, 1024-byte aligned, a step
// 32 bytes further.
#pragma once

namespace wgmma_steps {

// The lower word of an operand's descriptor, from its shared address; 16 bytes further is 1 more. The upper word is
// 0x40000040: the swizzle, and 8 rows in 64 * 16 bytes.
__device__ __forceinline__ unsigned operand(unsigned address) { return (address & 0x3ffffu) >> 4 | 1u << 16; }

// A run of products: begin, multiply, multiply_add .., commit; and wait before c is read. All four warps take part.
__device__ __forceinline__ void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kCount>
__device__ __forceinline__ void wait(int (&c)[kCount]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int n = 0; n < kCount; ++n) asm volatile("" : "+r"(c[n]));  // not read before
}

template <int kPending>
__device__ __forceinline__ void wait_but() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ void wait(float (&c)[2][6][4]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int n = 0; n < 48; ++n) asm volatile("" : "+f"((&c[0][0][0])[n]));
}

// multiply: c = a * b; multiply_add: c += a * b. 64 rows of a, columns rows of b, 32 channels. Warp w of the warpgroup
// holds rows [16w, 16w + 16): c[4j .. 4j + 3] is the C fragment of mma_m16n8k32 for columns [8j, 8j + 8).
#define FOUR(access, i) access(c[i]), access(c[i + 1]), access(c[i + 2]), access(c[i + 3])
#define SUMS_12(access) FOUR(access, 0), FOUR(access, 4), FOUR(access, 8)
#define SUMS_16(access) SUMS_12(access), FOUR(access, 12)
#define SUMS_24(access) SUMS_16(access), FOUR(access, 16), FOUR(access, 20)
#define SUMS_32(access) SUMS_24(access), FOUR(access, 24), FOUR(access, 28)
#define REGISTERS_12 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11"
#define REGISTERS_16 REGISTERS_12 ", %12, %13, %14, %15"
#define REGISTERS_24 REGISTERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define REGISTERS_32 REGISTERS_24 ", %24, %25, %26, %27, %28, %29, %30, %31"

#define STEP(sums, columns, registers, operand_a, operand_b, adds)                                          \
  asm volatile("{ .reg .pred adds; .reg .b64 a, b; setp.ne.b32 adds, " adds                                 \
               ", 0;\n"                                                                                     \
               "  mov.b64 a, {" operand_a ", 0x40000040}; mov.b64 b, {" operand_b                           \
               ", 0x40000040};\n"                                                                           \
               "  wgmma.mma_async.sync.aligned.m64n" columns "k32.s32.s8.s8 {" registers "}, a, b, adds; }" \
               : sums                                                                                       \
               : "r"(a), "r"(b))
#define PRODUCT(count, columns, operand_a, operand_b)                                     \
  __device__ __forceinline__ void multiply(int (&c)[count], unsigned a, unsigned b) {     \
    STEP(SUMS_##count("=r"), columns, REGISTERS_##count, operand_a, operand_b, "0");      \
  }                                                                                       \
  __device__ __forceinline__ void multiply_add(int (&c)[count], unsigned a, unsigned b) { \
    STEP(SUMS_##count("+r"), columns, REGISTERS_##count, operand_a, operand_b, "1");      \
  }

PRODUCT(12, "24", "%12", "%13")
PRODUCT(16, "32", "%16", "%17")
PRODUCT(24, "48", "%24", "%25")
PRODUCT(32, "64", "%32", "%33")

// c += a * b: FP16 operands, FP32 accumulators; 64 rows of a, of which the warp has the A fragment of mma_m16n8k16 for
// its 16 in registers; 48 rows of b; 16 columns. c[j] is the C fragment for columns [8j, 8j + 8).
#define FRAGMENT(c) "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
__device__ __forceinline__ void multiply_add(float (&c)[6][4], const unsigned (&a)[4], unsigned b) {
  asm volatile(
      "{ .reg .b64 b; mov.b64 b, {%28, 0x40000040};\n"
      "  wgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 {" REGISTERS_24 "}, {%24, %25, %26, %27}, b, 1, 1, 1, 0; }"
      : FRAGMENT(c[0]), FRAGMENT(c[1]), FRAGMENT(c[2]), FRAGMENT(c[3]), FRAGMENT(c[4]), FRAGMENT(c[5])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
}

#undef FRAGMENT
#undef FOUR
#undef SUMS_12
#undef SUMS_16
#undef SUMS_24
#undef SUMS_32
#undef REGISTERS_12
#undef REGISTERS_16
#undef REGISTERS_24
#undef REGISTERS_32
#undef STEP
#undef PRODUCT

}  // namespace wgmma_steps
