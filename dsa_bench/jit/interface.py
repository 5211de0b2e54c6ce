# SPDX-License-Identifier: MIT
"""What the launch wrappers rely on in a compiled module, and where another one differs."""

from collections.abc import Iterator, Mapping

from dsa_bench.jit.modules import CompiledModule
from dsa_bench.jit.resources import Parameter, read_parameters

FREE_FACTS = frozenset({"threads", "smem_bytes"})
"""Facts that a launch takes from the module as they are; every other one also means something to the host."""


def interface_differences(ours: CompiledModule, theirs: CompiledModule) -> Iterator[str]:
    """What keeps `theirs` from being launched as `ours` is, in words: kernels, their parameters, their facts.

    Parameters are known by place and size: a kernel that takes a float for an int is left to the check against FP64.
    """
    of_ours, of_theirs = read_parameters(ours.cubin), read_parameters(theirs.cubin)
    for kernel, facts in ours.kernels.items():
        if kernel not in theirs.kernels:
            yield f"{ours.name} has no kernel {kernel}"
            continue
        yield from _parameter_differences(kernel, of_ours.get(kernel, ()), of_theirs.get(kernel, ()))
        yield from _fact_differences(kernel, facts.constants, theirs.kernels[kernel].constants)


def _parameter_differences(kernel: str, ours: tuple[Parameter, ...], theirs: tuple[Parameter, ...]) -> Iterator[str]:
    if len(ours) != len(theirs):
        yield f"{kernel} takes {len(theirs)} parameters, not {len(ours)}"
        return
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True), 1):
        if one != other:
            yield f"parameter {number} of {kernel} is {_place(other)}, not {_place(one)}"


def _place(parameter: Parameter) -> str:
    return f"{parameter.size} bytes at {parameter.offset}"


def _fact_differences(kernel: str, ours: Mapping[str, int], theirs: Mapping[str, int]) -> Iterator[str]:
    for name in sorted((ours.keys() | theirs.keys()) - FREE_FACTS):
        one, other = ours.get(name), theirs.get(name)
        if one != other:
            said = "does not publish" if other is None else "publishes a new fact" if one is None else "publishes"
            values = "" if one is None or other is None else f" = {other}, not {one}"
            yield f"{kernel} {said} {name}{values}"
