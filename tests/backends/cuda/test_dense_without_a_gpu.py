# SPDX-License-Identifier: MIT
"""The dense launches, built with doubles for the device: parameters as the kernels declare them, grids, refusals."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsa_bench.backends.cuda import dense as cuda
from dsa_bench.backends.cuda.dense import DenseDeviceInputs, DenseLauncher, DenseWorkspace, device_kernels
from dsa_bench.data.dense import dense_inputs
from dsa_bench.jit.target import Target
from dsa_bench.model.dense import DENSE_KERNELS, DenseDtype, DenseKernel, DensePlan, DenseShape
from dsa_bench.model.dense_inputs import DTYPES
from dsa_bench.model.errors import VariantRefused
from dsa_bench.splits.dense import live

SHAPE = DenseShape(512, 300, 4, 2, 64, 160)
PLANS = (DensePlan(1, 512), DensePlan(4, 128), live(512, 16))


class FakeLaunch:
    def __init__(self, kernel: Any, grid: Any, arguments: Any, stream: Any, *, dependent: bool = False) -> None:
        self.name, self.grid, self.arguments, self.dependent = kernel.name, grid, list(arguments), dependent


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`launches(kernel, plan, shape)` are the launches of a call, as they would reach the driver."""

    def load_module(compiled: Any) -> Any:
        return compiled

    def compile_modules(names: list[str], *_: Any) -> list[Any]:
        if names == ["dense/attention_row"]:
            parts = ("attention_row", "attention_split", "attention_combine")
        else:
            parts = ("fast_row", "fast_split")
        kinds = [f"{part}_{dtype}" for part in parts for dtype in DTYPES]
        return [SimpleNamespace(kernels=dict.fromkeys(kinds))]

    facts = SimpleNamespace(constants={"max_head_size": 512, "max_splits": 64})
    monkeypatch.setattr(cuda, "compile_modules", compile_modules)
    monkeypatch.setattr(cuda, "load_module", load_module)
    monkeypatch.setattr(cuda, "Kernel", lambda _, name: SimpleNamespace(name=name, facts=facts))
    monkeypatch.setattr(cuda, "KernelLaunch", FakeLaunch)
    monkeypatch.setattr(cuda, "allocate", lambda shape, dtype: SimpleNamespace(shape=shape, dtype=np.dtype(dtype)))
    monkeypatch.setattr(cuda, "upload", lambda host: SimpleNamespace(shape=host.shape, dtype=host.dtype))

    def build(kernel: DenseKernel, plan: DensePlan, shape: DenseShape = SHAPE, target: int = 90) -> list[FakeLaunch]:
        inputs = dense_inputs(shape)
        workspace = DenseWorkspace.allocate(kernel, shape, plan)
        launcher = DenseLauncher(Target(target), None)
        device, out = DenseDeviceInputs.upload(inputs), cuda.allocate_output(shape)
        built: list[Any] = launcher.launches(kernel, plan, inputs, device, workspace, out)
        return built

    return build


def declared(root: Path, module: str, kernel: str) -> list[str]:
    """The parameters of a kernel, from its source: "pointer", "int" or "float" each."""
    folder = root / "kernels/dense"
    text = "".join((folder / name).read_text() for name in ("call.cuh", "partials.cuh", module))
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL).replace("\\\n", " ")
    macros = {
        name: re.search(rf"#define {name}(?:\(T\))? ([^\n]*)", text) for name in ("DENSE_INPUTS", "DENSE_PARTIALS")
    }
    found = re.search(rf"{kernel}_##type\(((?:[^()]|\(T\))*)\)\s*{{", text)
    assert found is not None
    parameters = found[1]
    for name, body in macros.items():
        assert body is not None
        parameters = re.sub(rf"{name}(?:\(T\))?", lambda _, body=body: body[1], parameters)
    kinds = {"*": "pointer", "int": "int", "float": "float"}
    return [next(kind for mark, kind in kinds.items() if mark in parameter) for parameter in parameters.split(",")]


def given(arguments: list[Any]) -> list[str]:
    kinds = {np.int32: "int", np.float32: "float", np.uint64: "pointer", SimpleNamespace: "pointer"}
    return [kinds[type(argument)] for argument in arguments]


@pytest.mark.parametrize("kernel", DENSE_KERNELS)
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_arguments_are_what_the_kernels_declare(
    root: Path, launches: Any, kernel: DenseKernel, plan: DensePlan
) -> None:
    module = {"previous": "attention_row.cu", "fast": "attention_fast.cu"}[kernel]
    built = launches(kernel, plan)
    assert [launch.name for launch in built] == list(device_kernels(kernel, SHAPE, plan))
    for launch in built:
        assert given(launch.arguments) == declared(root, module, launch.name.removesuffix("_f16")), launch.name


@pytest.mark.parametrize("kernel", DENSE_KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_grids_follow_the_contracts(launches: Any, kernel: DenseKernel, dtype: DenseDtype) -> None:
    shape = DenseShape(512, 300, 4, 2, 64, 160, batch=2, query_len=3, dtype=dtype)
    (row,) = launches(kernel, PLANS[0], shape)
    assert row.grid == (24, 1, 1)
    split, *combine = launches(kernel, PLANS[1], shape)
    assert split.grid == (24, 4, 1)
    assert not split.dependent
    assert [launch.grid for launch in combine] == ([(24, 1, 1)] if kernel == "previous" else [])
    assert all(launch.dependent for launch in combine)
    assert not any(launch.dependent for launch in launches(kernel, PLANS[1], shape, target=80))


@pytest.mark.usefixtures("launches")
@pytest.mark.parametrize("plan", PLANS)
def test_the_workspace_holds_what_the_plan_says(plan: DensePlan) -> None:
    made = DenseWorkspace.allocate("fast", SHAPE, plan)
    parts = [part for part in (made.acc, made.m, made.l, made.scores, made.arrived) if part is not cuda.NULL]
    held = sum(int(np.prod(part.shape)) * part.dtype.itemsize for part in parts)
    assert held == plan.workspace_bytes(SHAPE.rows, SHAPE.value_head_size)


def test_more_splits_than_a_kernel_merges_are_a_bug(launches: Any) -> None:
    with pytest.raises(ValueError, match="fast_split_f16 merges up to 64 splits"):
        launches("fast", DensePlan(65, 8))


def test_rows_of_several_splits_have_counters_that_start_at_zero(
    launches: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "upload", lambda host: host)
    arrived = DenseWorkspace.allocate("fast", SHAPE, PLANS[1]).arrived
    assert (arrived.tolist(), arrived.dtype) == ([0] * SHAPE.rows, np.uint32)
    assert DenseWorkspace.allocate("fast", SHAPE, PLANS[0]).arrived == cuda.NULL
    assert DenseWorkspace.allocate("previous", SHAPE, PLANS[1]).arrived == cuda.NULL


@pytest.mark.parametrize("change", [{"head_size": 36}, {"head_size": 264}, {"value_head_size": 100}])
def test_fast_refuses_head_sizes_that_break_its_vectors(change: dict[str, int]) -> None:
    sizes = {"head_size": 64, "value_head_size": 64} | change
    shape = DenseShape(64, 60, 4, 2, **sizes)
    with pytest.raises(VariantRefused, match=r"whole 16-byte vectors up to 256.*`previous` remains"):
        cuda.defines("fast", shape)
    assert cuda.defines("previous", shape) == {}


@pytest.mark.parametrize(
    ("head_size", "value_head_size", "dtype", "vectors"),
    [(192, 128, "f16", (3, 2)), (8, 256, "bf16", (1, 4)), (36, 68, "f32", (1, 2)), (200, 64, "f16", (4, 1))],
)
def test_what_fast_is_built_for(
    head_size: int, value_head_size: int, dtype: DenseDtype, vectors: tuple[int, int]
) -> None:
    built = cuda.defines("fast", DenseShape(64, 60, 4, 2, head_size, value_head_size, dtype=dtype))
    assert built == {"KEY_VECTORS": vectors[0], "VALUE_VECTORS": vectors[1]}


def test_builds_have_hashes_of_their_own() -> None:
    launcher = DenseLauncher(Target(90, "a"), None)
    one, other = (launcher.kernel_hash("fast", DenseShape(64, 60, 4, 2, size, 64)) for size in (64, 128))
    assert one != other
    assert launcher.kernel_hash("previous", SHAPE) == launcher.kernel_hash("previous", DenseShape(64, 60))
