# SPDX-License-Identifier: MIT
"""The kernel hash: what must not change it (comments, blanks, files out of reach) and what must."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsa_bench.jit.sources import (
    Sources,
    kernel_hash,
    kernels_folder,
    module_names,
    normalised,
    read_sources,
)
from dsa_bench.model.errors import BadInput

SOURCE = r"""#include "dsa/a.cuh"
#define WIDE 4
extern "C" __global__ void k(float* x) { asm("// no comment" :: "f"(x[1'000])); x[0] = WIDE; }
"""
HEADER = '#pragma once\n#include "dsa/b.cuh"  // #include "dsa/unreached.cuh"\n/*\n#include "dsa/unreached.cuh"\n*/\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "dsa").mkdir()
    for name, text in {"k.cu": SOURCE, "dsa/a.cuh": HEADER, "dsa/b.cuh": "int b;", "dsa/unreached.cuh": "u"}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def digest(root: Path, flags: tuple[str, ...] = ("-O3",), **defines: int) -> str:
    return kernel_hash(read_sources("k", root), defines, flags)


def test_closure_follows_own_headers_only(root: Path) -> None:
    sources = read_sources("k", root)
    assert sources.name == "k.cu"
    assert set(sources.headers) == {"dsa/a.cuh", "dsa/b.cuh"}


def test_include_cycles_end(root: Path) -> None:
    (root / "dsa/b.cuh").write_text('#include "dsa/a.cuh"\n#include "k.cu"\n#include "cuda_fp16.h"\n')
    assert set(read_sources("k", root).headers) == {"dsa/a.cuh", "dsa/b.cuh"}


@pytest.mark.parametrize("name", ["k.cu", "dsa/a.cuh", "dsa/b.cuh"])
def test_comments_and_blanks_change_nothing(root: Path, name: str) -> None:
    before = digest(root)
    path = root / name
    path.write_text(f"// new\n\n{path.read_text()}\n/* two\nlines */  // it's \\\n still a comment\n\n")
    assert digest(root) == before


def test_edits_within_reach_change_the_hash(root: Path) -> None:
    seen = {digest(root), digest(root, TILE=64), digest(root, TILE=32), digest(root, ("-O3", "-G"))}
    for name in ("k.cu", "dsa/a.cuh", "dsa/b.cuh"):
        (root / name).write_text((root / name).read_text() + "int more;")
        seen.add(digest(root))
    assert len(seen) == 7


def test_a_header_out_of_reach_changes_nothing(root: Path) -> None:
    before = digest(root)
    (root / "dsa/unreached.cuh").write_text("changed")
    assert digest(root) == before


def test_the_folder_is_no_part_of_the_hash(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("elsewhere") / "kernels"
    root.rename(other)
    before = digest(other)
    other.rename(root)
    assert digest(root) == before


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("a /* x */ b", "a b"),
        ("a// x\nb", "a b"),
        ("a\n\n\t b", "a b"),
        ("a // x \\\n x\nb", "a b"),
        ("  #  define  A /* \n */ 1 // x\n\n  a;", "#define A 1\na;".replace("#", "# ")),
        ("#define A \\\n  1\nb", "#define A 1\nb"),
        ("x = 1'000; // it's", "x = 1'000;"),
        ("c = '\"'; // \"", "c = '\"';"),
        ("/* never closed", ""),
    ],
)
def test_equal_after_normalisation(text: str, same: str) -> None:
    assert normalised(text) == normalised(same)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ('"a  b"', '"a b"'),
        ('"// a"', '"// b"'),
        ('"\\"// a"', '"\\"// b"'),
        ("'  '", "' '"),
        ('R"x(" // a)x"', 'R"x(" // b)x"'),
        ("a b", "ab"),
        ("#define A 1\n+ 2", "#define A 1 + 2"),
    ],
)
def test_different_after_normalisation(one: str, two: str) -> None:
    assert normalised(one) != normalised(two)


pieces = st.sampled_from(
    ["x1", "+", "'c'", '" s // s "', "1'000.5f", "(", ";", 'R"(raw " /* )"', "\n#pragma unroll\n", '\n#include "h"\n']
)
noise = st.lists(st.sampled_from([" ", "\n", "\t", "// c '\n", '/* " \n // */', "\\\n"]), min_size=1, max_size=4).map(
    "".join
)


@given(st.lists(pieces, max_size=12), st.data())
def test_noise_between_tokens_is_dropped(tokens: list[str], data: st.DataObject) -> None:
    noisy = "".join(token + " " + data.draw(noise) for token in tokens)
    assert normalised(noisy) == normalised(" ".join(tokens))
    assert normalised(normalised(noisy)) == normalised(noisy)


@given(
    st.dictionaries(st.sampled_from("ABC"), st.integers(0, 3)),
    st.dictionaries(st.sampled_from("ABC"), st.integers(0, 3)),
)
def test_hashes_agree_exactly_when_defines_do(one: dict[str, int], two: dict[str, int]) -> None:
    sources = Sources("k.cu", SOURCE, {"dsa/a.cuh": HEADER})
    hashes = [kernel_hash(sources, defines, ()) for defines in (one, two)]
    assert (hashes[0] == hashes[1]) == (one == two)


def test_modules_of_a_folder(root: Path) -> None:
    (root / "dsa/merge.cu").write_text("")
    assert module_names(root) == ["dsa/merge", "k"]
    with pytest.raises(BadInput, match=r"no kernel module 'dsa/a'; there are: dsa/merge k"):
        read_sources("dsa/a", root)


def test_this_installation_has_kernels() -> None:
    assert kernels_folder().name == "kernels"
