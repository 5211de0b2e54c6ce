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

// c = a * b, or c += a * b: 64 rows of a, columns rows of b, 32 channels. Warp w of the warpgroup holds rows
// [16w, 16w + 16): c[4j .. 4j + 3] is the C fragment of mma_m16n8k32 for columns [8j, 8j + 8).
#define FOUR(access, i) access(c[i]), access(c[i + 1]), access(c[i + 2]), access(c[i + 3])

__device__ __forceinline__ void multiply(int (&c)[12], unsigned a, unsigned b) {
  asm volatile(
      "{ .reg .pred p; .reg .b64 da, db; setp.ne.b32 p, 0, 0;\n"
      "  mov.b64 da, {%12, 0x40000040}; mov.b64 db, {%13, 0x40000040};\n"
      "  wgmma.mma_async.sync.aligned.m64n24k32.s32.s8.s8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11}, "
      "da, db, p; }"
      : FOUR("=r", 0), FOUR("=r", 4), FOUR("=r", 8)
      : "r"(a), "r"(b));
}

__device__ __forceinline__ void multiply_add(int (&c)[12], unsigned a, unsigned b) {
  asm volatile(
      "{ .reg .pred p; .reg .b64 da, db; setp.ne.b32 p, 1, 0;\n"
      "  mov.b64 da, {%12, 0x40000040}; mov.b64 db, {%13, 0x40000040};\n"
      "  wgmma.mma_async.sync.aligned.m64n24k32.s32.s8.s8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11}, "
      "da, db, p; }"
      : FOUR("+r", 0), FOUR("+r", 4), FOUR("+r", 8)
      : "r"(a), "r"(b));
}

__device__ __forceinline__ void multiply(int (&c)[16], unsigned a, unsigned b) {
  asm volatile(
      "{ .reg .pred p; .reg .b64 da, db; setp.ne.b32 p, 0, 0;\n"
      "  mov.b64 da, {%16, 0x40000040}; mov.b64 db, {%17, 0x40000040};\n"
      "  wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "da, db, p; }"
      : FOUR("=r", 0), FOUR("=r", 4), FOUR("=r", 8), FOUR("=r", 12)
      : "r"(a), "r"(b));
}

__device__ __forceinline__ void multiply_add(int (&c)[16], unsigned a, unsigned b) {
  asm volatile(
      "{ .reg .pred p; .reg .b64 da, db; setp.ne.b32 p, 1, 0;\n"
      "  mov.b64 da, {%16, 0x40000040}; mov.b64 db, {%17, 0x40000040};\n"
      "  wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "da, db, p; }"
      : FOUR("+r", 0), FOUR("+r", 4), FOUR("+r", 8), FOUR("+r", 12)
      : "r"(a), "r"(b));
}

__device__ __forceinline__ void multiply(int (&c)[24], unsigned a, unsigned b) {
  asm volatile(
      "{ .reg .pred p; .reg .b64 da, db; setp.ne.b32 p, 0, 0;\n"
      "  mov.b64 da, {%24, 0x40000040}; mov.b64 db, {%25, 0x40000040};\n"
      "  wgmma.mma_async.sync.aligned.m64n48k32.s32.s8.s8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
      "%22, %23}, "
      "da, db, p; }"
      : FOUR("=r", 0), FOUR("=r", 4), FOUR("=r", 8), FOUR("=r", 12), FOUR("=r", 16), FOUR("=r", 20)
      : "r"(a), "r"(b));
}

__device__ __forceinline__ void multiply_add(int (&c)[24], unsigned a, unsigned b) {
  asm volatile(
      "{ .reg .pred p; .reg .b64 da, db; setp.ne.b32 p, 1, 0;\n"
      "  mov.b64 da, {%24, 0x40000040}; mov.b64 db, {%25, 0x40000040};\n"
      "  wgmma.mma_async.sync.aligned.m64n48k32.s32.s8.s8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
      "%22, %23}, "
      "da, db, p; }"
      : FOUR("+r", 0), FOUR("+r", 4), FOUR("+r", 8), FOUR("+r", 12), FOUR("+r", 16), FOUR("+r", 20)
      : "r"(a), "r"(b));
}

__device__ __forceinline__ void multiply(int (&c)[32], unsigned a, unsigned b) {
  asm volatile(
      "{ .reg .pred p; .reg .b64 da, db; setp.ne.b32 p, 0, 0;\n"
      "  mov.b64 da, {%32, 0x40000040}; mov.b64 db, {%33, 0x40000040};\n"
      "  wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
      "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "da, db, p; }"
      : FOUR("=r", 0), FOUR("=r", 4), FOUR("=r", 8), FOUR("=r", 12), FOUR("=r", 16), FOUR("=r", 20), FOUR("=r", 24),
        FOUR("=r", 28)
      : "r"(a), "r"(b));
}

__device__ __forceinline__ void multiply_add(int (&c)[32], unsigned a, unsigned b) {
  asm volatile(
      "{ .reg .pred p; .reg .b64 da, db; setp.ne.b32 p, 1, 0;\n"
      "  mov.b64 da, {%32, 0x40000040}; mov.b64 db, {%33, 0x40000040};\n"
      "  wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
      "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "da, db, p; }"
      : FOUR("+r", 0), FOUR("+r", 4), FOUR("+r", 8), FOUR("+r", 12), FOUR("+r", 16), FOUR("+r", 20), FOUR("+r", 24),
        FOUR("+r", 28)
      : "r"(a), "r"(b));
}

#undef FOUR

}  // namespace wgmma_steps
