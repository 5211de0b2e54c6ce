# SPDX-License-Identifier: MIT
"""Case F7: a driver that refuses the machine code, played by a fake CuPy; and a module loaded on a device."""

import gc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsa_bench.jit import load as loading
from dsa_bench.jit.load import load_module
from dsa_bench.jit.modules import CompiledModule, compile_modules
from dsa_bench.jit.target import Target, device_target
from dsa_bench.model.errors import CannotMeasure

COMPILED = CompiledModule("dsa/merge", Target(90, "a"), "0123", "13.0.88", b"cubin", {}, {})


class DriverError(RuntimeError):
    def __init__(self, status: int) -> None:
        super().__init__(f"CUDA error {status}")
        self.status = status


class Module:
    refusal: Exception | None = None

    def load(self, cubin: bytes) -> None:
        if self.refusal:
            raise self.refusal
        self.cubin = cubin

    def get_function(self, name: str) -> Any:
        return SimpleNamespace(name=name, ptr=1)


@pytest.fixture
def module_class(monkeypatch: pytest.MonkeyPatch) -> type[Module]:
    runtime = SimpleNamespace(driverGetVersion=lambda: 12040, runtimeGetVersion=lambda: 12080)
    fresh = type("FreshModule", (Module,), {})
    monkeypatch.setattr(
        loading, "load", {"cupy": SimpleNamespace(cuda=SimpleNamespace(Module=fresh, runtime=runtime))}.get
    )
    return fresh


def test_loads_from_memory(module_class: type[Module]) -> None:
    loaded = load_module(COMPILED)
    assert loaded.module.cubin == b"cubin"
    assert loaded.function("merge").name == "merge"


def test_a_module_outlives_its_users(module_class: type[Module]) -> None:
    """A later module's kernels would get its handles, and in CUPTI's records its kernels' names."""
    alive = weakref.ref(load_module(COMPILED).module)
    gc.collect()
    assert alive() is not None


@pytest.mark.parametrize(
    ("status", "advice"),
    [(222, "install a newer driver"), (209, "the device's own architecture"), (2, "dsa-bench env")],
)
def test_a_refusal_names_three_versions_and_one_remedy(module_class: type[Module], status: int, advice: str) -> None:
    module_class.refusal = DriverError(status)
    with pytest.raises(CannotMeasure) as refusal:
        load_module(COMPILED)
    message = str(refusal.value)
    for part in (
        "dsa/merge for sm_90a",
        f"error {status}",
        "driver for CUDA 12.4",
        "run time 12.8",
        "compiler 13.0.88",
    ):
        assert part in message
    assert advice in message
    assert "\n" not in message
    assert refusal.value.exit_code == 3


def test_another_error_keeps_its_traceback(module_class: type[Module]) -> None:
    module_class.refusal = RuntimeError("a bug")
    with pytest.raises(RuntimeError, match="a bug"):
        load_module(COMPILED)


@pytest.mark.gpu
def test_a_device_runs_its_own_code_and_refuses_another_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    try:
        properties = cupy.cuda.runtime.getDeviceProperties(0)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f"no device: {error}")
    monkeypatch.setenv("DSA_BENCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "add.cu").write_text('extern "C" __global__ void add(int* x, int n) { x[threadIdx.x] += n; }')
    own = device_target((properties["major"], properties["minor"]))
    other = Target(120 if own.number != 120 else 90, "a")
    mine, foreign = (compile_modules(["add"], target, root=tmp_path)[0] for target in (own, other))
    values = cupy.arange(32, dtype=cupy.int32)
    load_module(mine).function("add")((1,), (32,), (values, cupy.int32(5)))
    assert values.tolist() == list(range(5, 37))
    with pytest.raises(CannotMeasure, match="the device's own architecture"):
        load_module(foreign)
