// SPDX-License-Identifier: MIT
// kernels/common/arrivals.cuh - threads that have met, by a barrier or __syncwarp, arrive at an mbarrier as one.
//
// One of them can speak for all, as what they did before they met comes before its arrival (PTX ISA, causality order).
// racecheck of compute-sanitizer counts only what the arriving thread itself did, so for it all of them arrive: with
// EACH_ARRIVES=1, which changes nothing else.
#pragma once

#include "common/barrier.cuh"

#ifndef EACH_ARRIVES
#define EACH_ARRIVES 0
#endif

// What an mbarrier counts to if `threads` arrive, `met` of them as one.
__device__ constexpr int arrivals(int threads, int met) { return EACH_ARRIVES ? threads : threads / met; }

// By each thread that has met the others; one of them is the speaker.
__device__ __forceinline__ void arrive_as_one(unsigned barrier, bool speaker) {
  if (EACH_ARRIVES || speaker) mbarrier_arrive(barrier);
}
