// SPDX-License-Identifier: MIT
// kernels/common/fact.cuh - what a launcher must know about a kernel, kept in the compiled module.
//
// KERNEL_FACT(decode_int8_tc, tile, 64) defines the unsigned 32-bit symbol `decode_int8_tc_tile`. It is read through
// the ELF symbol table of the cubin, so no GPU is needed and nothing is mirrored by hand on the host. (A fact of 0 has
// its symbol in a section without bytes.)
//   threads         threads per CTA, all in x
//   smem_bytes      dynamic shared memory per CTA; above 48 KiB the launcher first raises the kernel's limit
// and, where they mean something,
//   tile            candidates, channels or vectors per step or CTA, as the contract of the kernel says
//   head_size       the only head size
//   max_head_size   the largest
//   max_group       query heads of a KV head that fit a CTA
//   paths           ways to compute of which each CTA takes one, numbered from 0, and path_<name>, the number of each
//   step            candidates of a step of the main loop, where it isn't a tile
//   heads_per_cta   query heads of a KV head that share a CTA, where a group may need several CTAs
#pragma once

#define KERNEL_FACT(kernel, fact, value) extern "C" __device__ const unsigned kernel##_##fact = (value)
