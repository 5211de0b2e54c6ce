# SPDX-License-Identifier: MIT
"""Facts from text and bytes alone. The log is NVRTC 13.0's for sm_80; the ELF files are written here."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsa_bench.jit.resources import read_constants, read_facts

LOG = """ptxas info    : 28 bytes gmem, 16 bytes cmem[4]
ptxas info    : Compiling entry function 'merge' for 'sm_80'
ptxas info    : Function properties for merge
ptxas         .     32 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 22 registers, used 1 barriers, 256 bytes smem, 360 bytes cmem[0]
ptxas info    : Compile time = 12.807 ms
ptxas info    : Compiling entry function 'merge_wide' for 'sm_80'
ptxas info    : Function properties for merge_wide
ptxas         .     288 bytes stack frame, 248 bytes spill stores, 740 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 320 bytes cumulative stack size, 364 bytes cmem[0]
ptxas info    : Function properties for _Z4deepfi
ptxas         .     200 bytes stack frame, 52 bytes spill stores, 60 bytes spill loads
"""


def elf(variables: dict[str, tuple[int, int]], base: int = 0) -> bytes:
    """A minimal ELF64 file: name -> (value, size); zeros lie in a section without bytes, as the compiler does it."""
    names, data, symbols = b"\0", b"", struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    for name, (value, size) in variables.items():
        section, at = (2, 0) if value == 0 else (1, base + len(data))
        symbols += struct.pack("<IBBHQQ", len(names), 1, 0, section, at, size)
        names += name.encode() + b"\0"
        data += value.to_bytes(size, "little") if value else b""
    section_names = b"\0.nv.global.init\0.nv.global\0"
    contents = [(0, 0, 0, b"", 0, 0), (1, 1, base, data, 0, 0), (17, 8, 0, b"", 0, 0), (0, 2, 0, symbols, 4, 24)]
    contents += [(0, 3, 0, names, 0, 0), (0, 3, 0, section_names, 0, 0)]
    body, headers = b"", b""
    for name, kind, address, content, link, entry in contents:
        headers += struct.pack("<IIQQQQIIQQ", name, kind, 0, address, 64 + len(body), len(content), link, 0, 0, entry)
        body += content
    ident = b"\x7fELF\x02\x01".ljust(16, b"\0")
    return (
        ident + struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, 6, 5) + body + headers
    )


def test_facts_of_each_kernel() -> None:
    facts = read_facts(LOG, {"merge_threads": 128, "merge_wide_threads": 256, "merge_wide_smem_bytes": 4096, "lone": 1})
    merge, wide = facts["merge"], facts["merge_wide"]
    assert (merge.registers, merge.stack_bytes, merge.static_smem_bytes) == (22, 32, 256)
    assert (merge.constants, merge.threads, merge.dynamic_smem_bytes) == ({"threads": 128}, 128, 0)
    assert (wide.registers, wide.stack_bytes, wide.static_smem_bytes) == (32, 320, 0)
    assert (wide.spill_store_bytes, wide.spill_load_bytes) == (300, 800)
    assert (wide.threads, wide.dynamic_smem_bytes) == (256, 4096)


@pytest.mark.parametrize("log", ["", "Compiling entry function 'k' for 'sm_80'\nanother format"])
def test_a_report_without_facts_is_refused(log: str) -> None:
    with pytest.raises(ValueError, match="report"):
        read_facts(log, {})


@given(st.dictionaries(st.text("ab_", min_size=1), st.integers(0, 2**32 - 1)), st.sampled_from([0, 64]))
def test_constants_are_read_back(constants: dict[str, int], base: int) -> None:
    others = {"_ZN4tileE": (1, 4), "a wide one": (1, 8)}
    assert read_constants(elf({name: (value, 4) for name, value in constants.items()} | others, base)) == constants


def test_bytes_after_the_file_are_no_part_of_it() -> None:
    assert read_constants(elf({"k_tile": (64, 4)}) + b'\n{"log": ""}') == {"k_tile": 64}


@given(st.integers(0, 600))
def test_a_cut_file_is_an_error_not_a_crash(length: int) -> None:
    whole = elf({"k_tile": (64, 4), "k_threads": (128, 4)})
    with pytest.raises(ValueError, match="no CUBIN"):
        read_constants(whole[: min(length, len(whole) - 1)])
