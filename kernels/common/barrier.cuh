// SPDX-License-Identifier: MIT
// kernels/common/barrier.cuh - named barriers, mbarriers and clusters in PTX. One wrapper each, no policy.
#pragma once

// Waits for kThreads threads of the CTA, which all name the same barrier 1 .. 15.
template <int kBarrier, int kThreads>
__device__ __forceinline__ void named_sync() {
  asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}

// The same; whether `x` is true in one of them.
template <int kBarrier, int kThreads>
__device__ __forceinline__ bool named_sync_or(bool x) {
  int any;
  asm volatile("{ .reg .pred p, q;\n setp.ne.s32 p, %1, 0;\n bar.red.or.pred q, %2, %3, p;\n selp.s32 %0, 1, 0, q; }"
               : "=r"(any)
               : "r"(static_cast<int>(x)), "n"(kBarrier), "n"(kThreads)
               : "memory");
  return any;
}

// Counts for such a barrier without waiting.
template <int kBarrier, int kThreads>
__device__ __forceinline__ void named_arrive() {
  asm volatile("bar.arrive %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}

// Adds 1 to *counter, but makes it 0 if it was `last`; what it was. Before it, this thread sees and publishes what
// other threads wrote or, by a barrier, have seen.
__device__ __forceinline__ unsigned increment_and_wrap(unsigned* counter, unsigned last) {
  unsigned was;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(was) : "l"(counter), "r"(last) : "memory");
  return was;
}

// An mbarrier, by its shared address. Its phases alternate between parity 0 and 1.
__device__ __forceinline__ void mbarrier_init(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Before another use of its place, or of it with other arrivals. Nobody may be about to use it.
__device__ __forceinline__ void mbarrier_invalidate(unsigned barrier) {
  asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(unsigned barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barrier) : "memory");
}

// Arrives once all cp.async of this thread so far have landed; one of the arrivals that the barrier was made for.
__device__ __forceinline__ void mbarrier_arrive_copied(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// Returns once the phase of that parity is over.
__device__ __forceinline__ void mbarrier_wait(unsigned barrier, int parity) {
  int done = 0;
  while (!done) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.s32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
#else
    asm volatile("{ .reg .pred p;\n mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n selp.s32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
#endif
  }
}

// --- sm_90 and later -------------------------------------------------------------------------------------------------

// What threads of this CTA wrote to shared memory, seen by wgmma and other asynchronous reads.
__device__ __forceinline__ void fence_for_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Makes mbarrier_init visible to the cluster's barrier.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Every thread of the cluster arrives; those that go on to write to another CTA wait. Orders nothing but mbarriers.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Which CTA of its cluster this is, and which cluster of the grid's x.
__device__ __forceinline__ unsigned cluster_rank() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ unsigned cluster_index() {
  unsigned index;
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(index));
  return index;
}

// An address of this CTA's shared memory, in that of CTA `rank` of the cluster.
__device__ __forceinline__ unsigned cluster_address(unsigned address, int rank) {
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// One arrival, and `bytes` that will be stored by cluster_store before the phase is over.
__device__ __forceinline__ void mbarrier_expect(unsigned barrier, int bytes) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Like mbarrier_wait, and what other CTAs stored is seen.
__device__ __forceinline__ void mbarrier_wait_cluster(unsigned barrier, int parity) {
  int done = 0;
  while (!done)
    asm volatile(
        "{ .reg .pred p;\n mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.s32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
}

// Stores to another CTA's shared memory and counts the bytes on its `barrier`, without a fence between the two.
__device__ __forceinline__ void cluster_store(unsigned target, unsigned barrier, float4 x) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(target),
      "r"(__float_as_int(x.x)), "r"(__float_as_int(x.y)), "r"(__float_as_int(x.z)), "r"(__float_as_int(x.w)),
      "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void cluster_store(unsigned target, unsigned barrier, float2 x) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(target),
               "r"(__float_as_int(x.x)), "r"(__float_as_int(x.y)), "r"(barrier)
               : "memory");
}

__device__ __forceinline__ void cluster_store(unsigned target, unsigned barrier, float x) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(target),
               "r"(__float_as_int(x)), "r"(barrier)
               : "memory");
}
