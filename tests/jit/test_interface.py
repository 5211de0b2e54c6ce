# SPDX-License-Identifier: MIT
"""Kernels that another revision's launch wrappers would launch wrongly, compiled without a GPU."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dsa_bench.backends.cuda.sides import refuse_other_interfaces
from dsa_bench.jit import compiler
from dsa_bench.jit.interface import interface_differences
from dsa_bench.jit.modules import compile_modules
from dsa_bench.jit.resources import Parameter, read_parameters
from dsa_bench.jit.target import Target, parse_target
from dsa_bench.model.errors import BadInput, CannotMeasure


def missing() -> str:
    try:
        compiler.toolchain()
    except CannotMeasure as error:
        return str(error)
    return ""


pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "installed")
SCALE = """
extern "C" __device__ const unsigned scale_threads = 128;
extern "C" __device__ const unsigned scale_tile = 64;
extern "C" __global__ void scale(float* x, int count, float factor, unsigned* seen) {
  if (threadIdx.x < count) x[threadIdx.x] *= factor;
  if (seen) *seen = 1;
}
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSA_BENCH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def target() -> Target:
    return parse_target("90")


@pytest.fixture
def differences(tmp_path: Path, target: Target) -> Callable[[str, str], list[str]]:
    """What differs when `old` is replaced by `new` in the kernel."""

    def call(old: str, new: str) -> list[str]:
        assert old in SCALE
        modules = []
        for name, text in (("ours", SCALE), ("theirs", SCALE.replace(old, new))):
            (tmp_path / name).mkdir()
            (tmp_path / name / "scale.cu").write_text(text)
            modules += compile_modules(["scale"], target, root=tmp_path / name)
        return list(interface_differences(*modules))

    return call


@pytest.mark.parametrize("name", ["75", "90", "100a", "120"])
def test_parameters_are_read_from_the_machine_code(tmp_path: Path, name: str) -> None:
    (tmp_path / "scale.cu").write_text(SCALE)
    (module,) = compile_modules(["scale"], parse_target(name), root=tmp_path)
    assert read_parameters(module.cubin) == {
        "scale": (Parameter(0, 8), Parameter(8, 4), Parameter(12, 4), Parameter(16, 8))
    }


def test_what_is_no_cubin_is_refused() -> None:
    with pytest.raises(ValueError, match="is no CUBIN"):
        read_parameters(b"plain text")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (", unsigned* seen) {", ") { unsigned* seen = nullptr;", ["scale takes 3 parameters, not 4"]),
        (
            "int count",
            "long count",
            [
                "parameter 2 of scale is 8 bytes at 8, not 4 bytes at 8",
                "parameter 3 of scale is 4 bytes at 16, not 4 bytes at 12",
                "parameter 4 of scale is 8 bytes at 24, not 8 bytes at 16",
            ],
        ),
        ("scale_tile = 64", "scale_tile = 128", ["scale publishes tile = 128, not 64"]),
        ("scale_tile", "scale_wide", ["scale does not publish tile", "scale publishes a new fact wide"]),
        ("void scale(", "void rescale(", ["scale has no kernel scale"]),
        ("scale_threads = 128", "scale_threads = 256", []),  # a launch takes it as it is
        ("*= factor", "+= factor", []),
        ("int count", "int count, int", ["scale takes 5 parameters, not 4"]),
    ],
)
def test_differences_are_named(
    differences: Callable[[str, str], list[str]], old: str, new: str, said: list[str]
) -> None:
    assert differences(old, new) == said


def test_folders_of_other_kernels_are_refused_naming_the_side(root: Path, tmp_path: Path, target: Target) -> None:
    ours = root / "kernels"
    theirs = shutil.copytree(ours, tmp_path / "kernels")
    refuse_other_interfaces("decode", (ours, theirs), target)
    merge = theirs / "dsa" / "merge.cu"
    text = merge.read_text()
    assert "int splits, int head_size)" in text
    merge.write_text(text.replace("int splits, int head_size)", "int splits, int head_size, int more)"))
    with pytest.raises(
        BadInput, match="side B cannot be launched by this dsa-bench: merge_partials takes 7 parameters, not 6"
    ):
        refuse_other_interfaces("decode", (ours, theirs), target)
    with pytest.raises(BadInput, match="side A cannot"):
        refuse_other_interfaces("decode", (theirs, ours), target)
    merge.unlink()
    with pytest.raises(BadInput, match=r"side B has no dsa/merge\.cu, which decode needs"):
        refuse_other_interfaces("decode", (ours, theirs), target)


def test_a_module_that_does_not_compile_is_left_to_its_variants(root: Path, tmp_path: Path, target: Target) -> None:
    theirs = shutil.copytree(root / "kernels", tmp_path / "kernels")
    (theirs / "dsa" / "merge.cu").write_text("#error not today\n")
    refuse_other_interfaces("decode", (root / "kernels", theirs), target)
