# SPDX-License-Identifier: MIT
"""What a compiled kernel needs, read from the compiler's log and the CUBIN's symbol table, without a GPU.

A module publishes facts to the host as `extern "C" __device__ const unsigned <kernel>_<fact> = ...;`. NVRTC 12.8, 12.9,
13.0 and 13.5 keep such constants though nothing refers to them (as local symbols, with their values in .nv.global.init,
a zero in .nv.global), so neither name expressions nor an option is needed. `__constant__ const` works as well. C++
constants (`constexpr int kTile` in a namespace) lie beside them under mangled names and are left out.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_ENTRY = re.compile(r"Compiling entry function '(\S+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_CUMULATIVE = re.compile(r"(\d+) bytes cumulative stack size")
_SHARED = re.compile(r"(\d+) bytes smem")
_CONSTANT_SECTIONS = (".nv.global", ".nv.constant3")
_ATTRIBUTES = ".nv.info."
"""Start of the name of the section with a kernel's attributes: format, attribute, and a value or the size of one."""
_SIZED = 4
_PARAMETER = 0x17
"""One parameter: index, ordinal, offset, and its size above 18 bits of flags. The same from sm_75 to sm_120."""
_NOBITS = 8
_OBJECT = 1


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """One kernel's resources per thread and per block, and the constants that its module publishes under its name.

    Spills include those of functions that were not inlined; static shared memory is what the kernel declares, without
    the KiB for each block that sm_90 and later reserve.
    """

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    static_smem_bytes: int
    constants: Mapping[str, int]

    @property
    def dynamic_smem_bytes(self) -> int:
        """Shared memory that the launch asks for: `<kernel>_smem_bytes`."""
        return self.constants.get("smem_bytes", 0)

    @property
    def threads(self) -> int | None:
        """Threads of a block, where the module publishes `<kernel>_threads`."""
        return self.constants.get("threads")


@dataclass(frozen=True, slots=True, order=True)
class Parameter:
    """Where a kernel's parameter lies in its argument block, in bytes."""

    offset: int
    size: int


def read_facts(log: str, constants: Mapping[str, int]) -> dict[str, KernelFacts]:
    """Facts for each kernel of a module, from the ptxas report and the module's constants, else ValueError."""
    _, *parts = _ENTRY.split(log)
    names = parts[0::2]
    if not names:
        raise ValueError("no kernel in the compiler's report: the module has no __global__ function")
    facts: dict[str, KernelFacts] = {}
    for name, report in zip(names, parts[1::2], strict=True):
        frames = [tuple(map(int, frame)) for frame in _FRAME.findall(report)]
        registers = _REGISTERS.search(report)
        if not frames or not registers:
            raise ValueError(f"the compiler's report on {name} has no stack frame or registers: {report.strip()!r}")
        cumulative, shared = _CUMULATIVE.search(report), _SHARED.search(report)
        facts[name] = KernelFacts(
            registers=int(registers[1]),
            stack_bytes=int(cumulative[1]) if cumulative else frames[0][0],
            spill_store_bytes=sum(frame[1] for frame in frames),
            spill_load_bytes=sum(frame[2] for frame in frames),
            static_smem_bytes=int(shared[1]) if shared else 0,
            constants={fact: value for owner, fact, value in _owned(constants, names) if owner == name},
        )
    return dict(sorted(facts.items()))


def _owned(constants: Mapping[str, int], kernels: list[str]) -> Iterator[tuple[str, str, int]]:
    """Each constant under the kernel with the longest name that it starts with: merge_wide's are not merge's."""
    for symbol, value in constants.items():
        owner = max((kernel for kernel in kernels if symbol.startswith(f"{kernel}_")), key=len, default=None)
        if owner:
            yield owner, symbol[len(owner) + 1 :], value


def read_constants(cubin: bytes) -> dict[str, int]:
    """The 32-bit variables of a module that have C names, with their initial values. ValueError if it is no CUBIN."""
    try:
        return {name: value for name, value in sorted(_variables(cubin)) if not name.startswith("_Z")}
    except (struct.error, IndexError, ValueError) as error:
        raise ValueError(f"the compiler's output is no CUBIN: {error}") from error


def read_parameters(cubin: bytes) -> dict[str, tuple[Parameter, ...]]:
    """Each kernel's parameters in order, from its attributes in the CUBIN. ValueError if it is no CUBIN."""
    try:
        sections = _named_sections(cubin)
        return {
            name.removeprefix(_ATTRIBUTES): tuple(parameter for _, parameter in sorted(_parameters(cubin, section)))
            for name, section in sorted(sections, key=lambda one: one[0])
            if name.startswith(_ATTRIBUTES)
        }
    except (struct.error, IndexError, ValueError) as error:
        raise ValueError(f"the compiler's output is no CUBIN: {error}") from error


def _parameters(cubin: bytes, section: "_Section") -> Iterator[tuple[int, Parameter]]:
    at, end = section.offset, section.offset + section.size
    while at < end:
        form, attribute, value = struct.unpack_from("<BBH", cubin, at)
        at += 4
        if form != _SIZED:
            continue
        if attribute == _PARAMETER:
            _, ordinal, offset, packed = struct.unpack_from("<IHHI", cubin, at)
            yield ordinal, Parameter(offset, packed >> 18)
        at += value


def _named_sections(cubin: bytes) -> list[tuple[str, "_Section"]]:
    """The sections of an ELF64 file (System V ABI, chapter 4) with their names, in order."""
    if cubin[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a little-endian ELF64 file")
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names_index = struct.unpack_from("<HHH", cubin, 58)
    sections = [_Section(*struct.unpack_from("<IIQQQQIIQQ", cubin, table + i * size)) for i in range(count)]
    return [(_text(cubin, sections[names_index], section.name), section) for section in sections]


def _text(cubin: bytes, strings: "_Section", at: int) -> str:
    start = strings.offset + at
    return cubin[start : cubin.index(b"\0", start)].decode()


def _variables(cubin: bytes) -> Iterator[tuple[str, int]]:
    """Walk the symbol table; symbol values are relative to their section's address."""
    sections = _named_sections(cubin)
    for _, symtab in (one for one in sections if one[1].type == 2):
        for at in range(symtab.offset, symtab.offset + symtab.size, symtab.entry_size):
            name, info, _, index, value, length = struct.unpack_from("<IBBHQQ", cubin, at)
            if info & 15 != _OBJECT or length != 4 or not 0 < index < len(sections):
                continue
            home_name, home = sections[index]
            if home_name.startswith(_CONSTANT_SECTIONS):
                at_value = home.offset + value - home.address
                number = 0 if home.type == _NOBITS else struct.unpack_from("<I", cubin, at_value)[0]
                yield _text(cubin, sections[symtab.link][1], name), number


@dataclass(frozen=True, slots=True)
class _Section:
    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry_size: int
