// SPDX-License-Identifier: MIT
// kernels/dsa/prefill_int8_ws.cu - attention of many query rows over their gathered INT8 candidates by specialised
// warps: producers gather, consumers compute, so that copies which wait for the L2 hold up no arithmetic.
//
// Computes  out[r, h, :] of prefill_int8_tc, rounded to BF16; 0 without a candidate.
// Grid      (rows, kv_heads). CTA (r, g) owns query heads [g * group, (g + 1) * group) and all tiles of the row's list.
// Block     prefill_int8_ws: 4 consumer warps and 1 producer, 2 stages, so that 3 CTAs fit an sm_90 SM.
//           prefill_int8_ws_few: 4 and 2, 3 stages where an SM has room, for no more CTAs than 2 per SM.
// Warps     Scores: consumer w owns candidates [16w, 16w + 16) of each tile; lane 4g + t of it candidates g and g + 8,
//           heads kHeads * t and the next. Output: consumer w owns channels [64w, 64w + 64), the lane 16i + 2g and the
//           next of them, for the same heads. So only the probabilities cross shared memory, and maxima if they move.
// Scores    q * key_scale as INT8 digits (int8_query.cuh), key times digits as exact integers: by wgmma on sm_90a, by
//           mma.sync elsewhere. All digits of a head lie in one lane. A common part of scores is subtracted exactly.
// Reference Probabilities are relative to a candidate's score, not to the maximum: a tile moves it, to its maximum,
//           only if two of a lane's probabilities would pass FP16 together, as they do where a score lies 5 bits above.
//           The FP16 tile holds 2^11 of a probability.
// Paths     Each CTA takes one; it starts again on `single`, from the inputs, if it meets a tail.
//           0 two     two digits. Needs, for each head, |dx| <= 2^14 units <= 0.125 nats: a unit is 2^-14 to 2^-15
//                     of the largest |q * key_scale|, and each channel is off by half of one.
//           1 four    four digits: |dx| as of path digits of int8_tc.cuh, but no error of a common part.
//           2 single  that of int8_tc.cuh, by its code. Taken at once if a |value_scale| is above 2^100 or NaN; and at
//                     the end of 0 or 1 if one is above 2^16 and there was a tail: a candidate more than 20 nats below
//                     the running maximum of its tile, or a maximum that rose by more than 60 nats after the first
//                     tile with a candidate. To see that, such a CTA moves the reference in each tile, to the running
//                     maximum, and its FP16 tile holds 2^15 of a probability.
// Taken     taken[r, g] of another kernel, launched before: where it is not 0, that has the row, and the CTA returns.
//           Null: all rows are this kernel's.
// Errors    p is off by 2^-11 p + 2^-36 of the largest, in l by 2^-22 p. Infinite and NaN inputs: as in int8_tc.cuh.
// Debug     forced_path and path_counts as of decode_int8_tc.
// Needs     sm_80+; head size 256; 1 <= group <= 16; 0 <= scale <= 1; candidates <= 2^20; query, key, value and both
//           scales 16-byte aligned, out 4-byte aligned.
//           An entry of `selected` outside [0, context) is no candidate, wherever it stands; duplicates count twice.
// Leaves    every element of out written.
#include "common/fact.cuh"
#include "dsa/int8_ws.cuh"

#define PREFILL_INT8_WS(kernel, producers, stages, resident)                                                        \
  KERNEL_FACT(kernel, threads, int8_ws::kConsumers + 32 * (producers));                                             \
  KERNEL_FACT(kernel, smem_bytes, sizeof(int8_ws::Smem<stages>));                                                   \
  KERNEL_FACT(kernel, tile, int8_ws::kTile);                                                                        \
  KERNEL_FACT(kernel, max_group, int8_ws::kMaxGroup);                                                               \
  KERNEL_FACT(kernel, head_size, int8_ws::kHeadSize);                                                               \
  KERNEL_FACT(kernel, paths, int8_ws::kPaths);                                                                      \
  KERNEL_FACT(kernel, path_two, int8_ws::kTwo);                                                                     \
  KERNEL_FACT(kernel, path_four, int8_ws::kFour);                                                                   \
  KERNEL_FACT(kernel, path_single, int8_ws::kSingle);                                                               \
  extern "C" __global__ void __launch_bounds__(int8_ws::kConsumers + 32 * (producers), resident)                    \
      kernel(const __nv_bfloat16* __restrict__ query, const Code* __restrict__ key, const Code* __restrict__ value, \
             const float* __restrict__ key_scale, const float* __restrict__ value_scale,                            \
             const int* __restrict__ selected, __nv_bfloat16* __restrict__ out, int context, int candidates,        \
             int group, float scale, int forced_path, unsigned* path_counts, const unsigned char* taken) {          \
    int8_ws::attend<stages, producers>(int8_ws::Call{query, key, value, key_scale, value_scale, selected, out,      \
                                                     context, candidates, group, scale, forced_path, path_counts,   \
                                                     taken});                                                       \
  }

PREFILL_INT8_WS(prefill_int8_ws, 1, 2, int8_ws::kResident)
PREFILL_INT8_WS(prefill_int8_ws_few, 2, int8_ws::kFewStages, int8_ws::kResidentFew)
