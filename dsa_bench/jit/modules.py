# SPDX-License-Identifier: MIT
"""The front of the package: kernel modules by name, compiled in parallel and cached, with their facts."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from dsa_bench.jit import cache, compiler
from dsa_bench.jit.resources import KernelFacts, read_constants, read_facts
from dsa_bench.jit.sources import Sources, kernel_hash, module_names, read_sources
from dsa_bench.jit.target import Target
from dsa_bench.model.errors import CompileFailed

Defines = Mapping[str, int | str]


@dataclass(frozen=True, slots=True)
class CompiledModule:
    """Machine code of one module for one target. `constants` are all that it publishes, under their full names."""

    name: str
    target: Target
    kernel_hash: str
    compiler: str
    cubin: bytes = field(repr=False)
    kernels: Mapping[str, KernelFacts]
    constants: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ResourceRow:
    """One kernel on one target. A module that does not compile is a row without kernel and numbers, with the reason."""

    module: str
    kernel: str | None
    target: str
    registers: int | None = None
    static_smem_bytes: int | None = None
    dynamic_smem_bytes: int | None = None
    spill_store_bytes: int | None = None
    spill_load_bytes: int | None = None
    stack_bytes: int | None = None
    threads: int | None = None
    reason: str | None = None


def module_hash(name: str, defines: Defines | None = None, root: Path | None = None) -> str:
    """The kernel hash of a module, known without a compiler."""
    return kernel_hash(read_sources(name, root), defines or {}, compiler.FLAGS)


def compile_modules(
    names: Sequence[str], target: Target, defines: Defines | None = None, root: Path | None = None
) -> list[CompiledModule]:
    """Compile modules below `root` (by default this installation's kernels), or take them from the cache, in order."""
    modules: list[CompiledModule] = []
    for outcome in compile_each(names, target, defines, root).values():
        if isinstance(outcome, CompileFailed):
            raise outcome
        modules.append(outcome)
    return modules


def compile_each(
    names: Sequence[str], target: Target, defines: Defines | None = None, root: Path | None = None
) -> dict[str, CompiledModule | CompileFailed]:
    """As compile_modules, but a module that does not compile is its failure, and the others are there."""
    return dict(zip(names, _compile_all([(name, target) for name in names], defines or {}, root), strict=True))


def resource_table(targets: Sequence[Target], root: Path | None = None) -> list[ResourceRow]:
    """What every kernel needs on every target; a failure is a row."""
    jobs = [(name, target) for name in module_names(root) for target in targets]
    rows: list[ResourceRow] = []
    for (name, target), outcome in zip(jobs, _compile_all(jobs, {}, root), strict=True):
        if isinstance(outcome, CompileFailed):
            rows.append(ResourceRow(name, None, str(target), reason=str(outcome)))
            continue
        rows += [
            ResourceRow(
                module=name,
                kernel=kernel,
                target=str(target),
                registers=facts.registers,
                static_smem_bytes=facts.static_smem_bytes,
                dynamic_smem_bytes=facts.dynamic_smem_bytes,
                spill_store_bytes=facts.spill_store_bytes,
                spill_load_bytes=facts.spill_load_bytes,
                stack_bytes=facts.stack_bytes,
                threads=facts.threads,
            )
            for kernel, facts in outcome.kernels.items()
        ]
    return rows


def _compile_all(
    jobs: Sequence[tuple[str, Target]], defines: Defines, root: Path | None
) -> list[CompiledModule | CompileFailed]:
    """One outcome for each job; each compiler runs in its own process, as many at once as there are CPUs."""
    sources = {name: read_sources(name, root) for name, _ in jobs}
    version = compiler.compiler_version()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        futures = [pool.submit(_compile_one, name, sources[name], target, defines, version) for name, target in jobs]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _compile_one(
    name: str, sources: Sources, target: Target, defines: Defines, version: str
) -> CompiledModule | CompileFailed:
    digest = kernel_hash(sources, defines, compiler.FLAGS)
    key = f"{digest}-{target}-{version}.cubin"
    try:
        if (binary := cache.load_entry(key)) is None:
            binary = compiler.compile_sources(sources, target, defines)
            cache.store_entry(key, binary)
        constants = read_constants(binary.cubin)
        return CompiledModule(name, target, digest, version, binary.cubin, read_facts(binary.log, constants), constants)
    except CompileFailed as error:
        return error
    except ValueError as error:  # facts that cannot be read
        return CompileFailed(f"{sources.name} for {target.sm}: {error}")
