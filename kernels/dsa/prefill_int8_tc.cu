// SPDX-License-Identifier: MIT
// kernels/dsa/prefill_int8_tc.cu - attention of many query rows over their gathered INT8 candidates, on tensor cores.
// The arithmetic is in int8_tc.cuh; a row has one CTA per KV head, so nothing is left to merge.
//
// Computes  out[r, h, :] = acc / l of int8_tc.cuh, rounded to BF16, for row r and query head h; 0 without a candidate.
// Grid      (rows, kv_heads). CTA (r, g) owns query heads [g * group, (g + 1) * group) and all tiles of the row's list.
// Block     128 threads, prefill_int8_tc_smem_bytes of dynamic shared memory.
// Debug     forced_path and path_counts as of decode_int8_tc.
// Needs     sm_80+; head size 256; 1 <= group <= 16; 0 <= scale <= 1; candidates <= 2^20; query, key, value and both
//           scales 16-byte aligned, out 8-byte aligned.
//           An entry of `selected` outside [0, context) is no candidate, wherever it stands; duplicates count twice.
// Leaves    every element of out written. What infinite and NaN inputs give is in int8_tc.cuh.
#include "common/fact.cuh"
#include "dsa/int8_tc.cuh"

KERNEL_FACT(prefill_int8_tc, threads, int8_tc::kThreads);
KERNEL_FACT(prefill_int8_tc, smem_bytes, sizeof(int8_tc::Smem<false>));
KERNEL_FACT(prefill_int8_tc, tile, int8_tc::kTile);
KERNEL_FACT(prefill_int8_tc, max_group, int8_tc::kMaxGroup);
KERNEL_FACT(prefill_int8_tc, head_size, int8_tc::kHeadSize);
KERNEL_FACT(prefill_int8_tc, paths, int8_tc::kPaths);
KERNEL_FACT(prefill_int8_tc, path_half, int8_tc::kHalf);
KERNEL_FACT(prefill_int8_tc, path_digits, int8_tc::kDigitsPath);
KERNEL_FACT(prefill_int8_tc, path_single, int8_tc::kSingle);

namespace int8_tc {

__device__ __forceinline__ unsigned bf16x2_bits(float x, float y) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
  return reinterpret_cast<const unsigned&>(pair);
}

// Where the output of one CTA goes.
struct Output {
  __nv_bfloat16* out;  // [group, 256]
  unsigned* path_counts;

  __device__ __forceinline__ void put_head(int, float, float) const {}
  __device__ __forceinline__ void put_acc(int head, int channel, float4 x, float l) const {
    const float inverse = reciprocal(l);
    *at<uint2>(head, channel) =
        make_uint2(bf16x2_bits(x.x * inverse, x.y * inverse), bf16x2_bits(x.z * inverse, x.w * inverse));
  }
  __device__ __forceinline__ void put_acc(int head, int channel, float2 x, float l) const {
    const float inverse = reciprocal(l);
    *at<unsigned>(head, channel) = bf16x2_bits(x.x * inverse, x.y * inverse);
  }
  __device__ __forceinline__ void put_path(Path path) const {
    if (path_counts != nullptr && threadIdx.x == 0) atomicAdd(path_counts + path, 1u);
  }

 private:
  template <typename Vector>
  __device__ __forceinline__ Vector* at(int head, int channel) const {
    return reinterpret_cast<Vector*>(out + head * kHeadSize + channel);
  }
  // 0 without a candidate, where acc is 0 too. With one, l >= 2^-27.
  __device__ __forceinline__ static float reciprocal(float l) { return l == 0.f ? 0.f : __frcp_rn(l); }
};

}  // namespace int8_tc

extern "C" __global__ void __launch_bounds__(int8_tc::kThreads,
                                             3)               // 3: what registers and shared memory allow on sm_90
    prefill_int8_tc(const __nv_bfloat16* __restrict__ query,  // [rows, query_heads, 256]
                    const Code* __restrict__ key,             // [kv_heads, context, 256]
                    const Code* __restrict__ value,           // [kv_heads, context, 256]
                    const float* __restrict__ key_scale,      // [kv_heads, 256]
                    const float* __restrict__ value_scale,    // [kv_heads, 256]
                    const int* __restrict__ selected,         // [rows, candidates]
                    __nv_bfloat16* __restrict__ out,          // [rows, query_heads, 256]
                    int context, int candidates, int group, float scale, int forced_path, unsigned* path_counts) {
  using namespace int8_tc;
  extern __shared__ __align__(alignof(Smem<false>)) unsigned char smem_bytes[];
  Smem<false>& smem = *reinterpret_cast<Smem<false>*>(smem_bytes);

  const unsigned row = blockIdx.x, kv_head = blockIdx.y;
  const size_t first_head = (static_cast<size_t>(row) * gridDim.y + kv_head) * group;
  const size_t cache_offset = static_cast<size_t>(kv_head) * context * kHeadSize;
  const Task task = {query + first_head * kHeadSize,
                     key + cache_offset,
                     value + cache_offset,
                     key_scale + kv_head * kHeadSize,
                     value_scale + kv_head * kHeadSize,
                     selected + static_cast<size_t>(row) * candidates,
                     context,
                     candidates,
                     group,
                     0,
                     (candidates + kTile - 1) / kTile,
                     scale};

  Attention<false> attention(task, smem);
  attention.run(forced_path, [&] {
    const uint3 cta = block_index(), grid = grid_size();
    const size_t heads = (static_cast<size_t>(cta.x) * grid.y + cta.y) * group;
    return Output{out + heads * kHeadSize, path_counts};
  });
}
