# SPDX-License-Identifier: MIT
"""The launches of `int8-union`, built with doubles for the device: parameters, grids, workspace, order."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsa_bench.backends.cuda import sparse as cuda
from dsa_bench.backends.cuda import workspaces
from dsa_bench.backends.cuda.memory import NULL
from dsa_bench.backends.cuda.runtime import CudaRuntime, sparse_launches
from dsa_bench.backends.cuda.sparse import DeviceInputs, Paths, SparseLauncher
from dsa_bench.backends.cuda.workspaces import Mailboxes, Unions
from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.model.call import SparseCall, TensorView
from dsa_bench.model.plan import VariantPlan
from dsa_bench.model.request import UNION, WS, DataSpec
from dsa_bench.model.shape import SparseShape
from dsa_bench.splits.geometry import CudaSparse

CONSTANTS = {
    "prefill_unite": {"bytes_per_word": 16, "union_bytes": 9232},
    "prefill_int8_union": {"rows": 4},
    "prefill_int8_ws": {"head_size": 256, "max_group": 16},
    "prefill_int8_ws_few": {"head_size": 256, "max_group": 16},
}
MAX_SMEM_BYTES = 131_072 // 32 * 16
KINDS = {"*": "pointer", "int ": "int", "float ": "float"}
GIVEN = {np.int32: "int", np.float32: "float", np.uint64: "pointer", np.ndarray: "pointer"}
SOURCES = {
    "prefill_unite": ("prefill_int8_union", r"prefill_unite"),
    "prefill_int8_union": ("prefill_int8_union", r"prefill_int8_union"),
    "prefill_int8_ws": ("prefill_int8_ws", r"kernel"),
    "prefill_int8_ws_few": ("prefill_int8_ws", r"kernel"),
}


def plan(shape: SparseShape, kernel: str = UNION) -> VariantPlan:
    return CudaSparse(396, 3).plan(kernel, shape, None)


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`launcher(programmatic)` builds launches as they would reach the driver."""

    def launch(kernel: Any, grid: Any, arguments: Any, _: Any, **options: Any) -> Any:
        return SimpleNamespace(name=kernel.name, grid=grid, arguments=list(arguments), options=options)

    monkeypatch.setattr(cuda, "KernelLaunch", launch)
    monkeypatch.setattr(workspaces, "allocate", np.empty)
    kernels: Any = {
        name: SimpleNamespace(name=name, dynamic_smem_bytes=MAX_SMEM_BYTES, facts=SimpleNamespace(constants=constants))
        for name, constants in CONSTANTS.items()
    }
    return lambda programmatic=True: SparseLauncher(kernels, None, programmatic=programmatic, sms=132)


def calls(launcher: SparseLauncher, shape: SparseShape, count: int = 1, paths: Paths | None = None) -> Any:
    """The launches of calls that share what the backend gives them."""
    small = sparse_inputs(SparseShape(1, 8, 4, op="prefill"), DataSpec())
    device = DeviceInputs(small.query, small.key, small.value, small.key_scale, small.value_scale, small.selected, 0.1)
    shapes = launcher.union_shapes(plan(shape), shape)
    assert shapes is not None
    unions = Unions.allocate(shapes)
    return [launcher.prefill(plan(shape), shape, device, small.query, paths or Paths(), unions) for _ in range(count)]


@pytest.mark.parametrize("rows", [9, 500])
def test_arguments_are_what_the_kernels_declare(root: Path, launcher: Any, rows: int) -> None:
    ((*_, last),) = (call,) = calls(launcher(), SparseShape(rows, 2000, 1000, op="prefill"))
    assert last.name == ("prefill_int8_ws_few" if rows == 9 else "prefill_int8_ws")
    for launch in call:
        file, name = SOURCES[launch.name]
        text = (root / f"kernels/dsa/{file}.cu").read_text().replace("\\\n", " ")
        found = re.search(rf"__launch_bounds__\(.*?\)\s+{name}\(([^)]*)\)", text, re.DOTALL)
        assert found is not None
        declared = [next(kind for mark, kind in KINDS.items() if mark in one) for one in found[1].split(",")]
        assert [GIVEN[type(argument)] for argument in launch.arguments] == declared, launch.name


@pytest.mark.parametrize(("rows", "groups"), [(1, 1), (4, 1), (5, 2), (9, 3)])
def test_grids_follow_the_contract(launcher: Any, rows: int, groups: int) -> None:
    ((unite, union, rest),) = calls(launcher(), SparseShape(rows, 2000, 1000, op="prefill"))
    assert [unite.name, union.name, rest.name] == ["prefill_unite", "prefill_int8_union", "prefill_int8_ws_few"]
    assert [unite.grid, union.grid, rest.grid] == [(groups, 1, 1), (groups, 2, 1), (rows, 2, 1)]


@pytest.mark.parametrize("programmatic", [True, False])
def test_the_first_waits_for_what_was_enqueued_before(launcher: Any, programmatic: bool) -> None:
    """It writes what the kernels of the call before read."""
    ((unite, *others),) = calls(launcher(programmatic), SparseShape(9, 2000, 1000, op="prefill"))
    assert "dependent" not in unite.options
    assert [launch.options["dependent"] for launch in others] == [programmatic] * 2


@pytest.mark.parametrize(
    ("context", "smem_bytes"), [(32, 16), (33, 32), (131_072, MAX_SMEM_BYTES), (131_073, MAX_SMEM_BYTES)]
)
def test_shared_memory_is_that_of_the_context(launcher: Any, context: int, smem_bytes: int) -> None:
    ((unite, *_),) = calls(launcher(), SparseShape(9, context, 8, op="prefill"))
    assert unite.options["smem_bytes"] == smem_bytes


def test_calls_share_one_workspace(launcher: Any) -> None:
    first, second = calls(launcher(), SparseShape(9, 2000, 1000, op="prefill"), count=2)
    lists, taken = first[0].arguments[-1], first[2].arguments[-1]
    assert (lists.shape, taken.shape) == ((3, 9232), (9, 2))
    for unite, union, rest in (first, second):
        assert unite.arguments[-1] is lists
        assert union.arguments[-2] is lists
        assert union.arguments[-1] is rest.arguments[-1] is taken


@pytest.mark.parametrize(("forced", "of_the_rest"), [(-1, -1), (0, -1), (1, 0), (2, 1), (3, 2)])
def test_paths_behind_the_first_are_those_of_int8_ws(launcher: Any, forced: int, of_the_rest: int) -> None:
    counts = np.zeros(4, np.uint32)
    shape = SparseShape(9, 2000, 1000, op="prefill")
    ((_, union, rest),) = calls(launcher(), shape, paths=Paths(forced, counts))
    assert union.arguments[11:13] == [forced, counts]
    assert rest.arguments[11] == of_the_rest
    assert np.shares_memory(rest.arguments[12], counts[1:2])
    assert rest.arguments[12].size == 3
    ((_, union, rest),) = calls(launcher(), shape, paths=Paths(forced))
    assert union.arguments[12] is rest.arguments[12] is NULL


def test_other_kernels_need_no_workspace(launcher: Any) -> None:
    shape = SparseShape(9, 2000, 1000, op="prefill")
    assert launcher().union_shapes(plan(shape, WS), shape) is None


def test_a_callers_workspace_holds_what_rows_leave_each_other(launcher: Any) -> None:
    """Lists first, so that they are aligned as the workspace is, and a byte for each row and KV head behind them."""
    shape, build = SparseShape(9, 2000, 1000, op="prefill"), launcher()
    view = TensorView("any", (1,), "uint8", 4096, 1, "cuda", 0, None)
    call = SparseCall(view, view, view, view, view, view, view, 0.1)
    workspace = TensorView("workspace", (30_000,), "uint8", 1 << 20, 30_000, "cuda", 0, None)
    unite, union, rest = sparse_launches(build, plan(shape), shape, call, workspace, Mailboxes())
    assert unite.arguments[-1].data.ptr == union.arguments[-2].data.ptr == 1 << 20
    assert union.arguments[-1].data.ptr == rest.arguments[-1].data.ptr == (1 << 20) + 3 * 9232
    shapes = build.union_shapes(plan(shape), shape)
    assert shapes.nbytes == 3 * 9232 + 9 * 2
    (alone,) = sparse_launches(build, plan(shape, WS), shape, call, None, Mailboxes())
    assert alone.arguments[-1] is NULL


def test_a_workspace_is_asked_for_lists_and_what_is_behind_them(launcher: Any) -> None:
    """Of a runtime whose backend is a double: without the last bytes, taken rows would be told of beyond the end."""
    runtime = object.__new__(CudaRuntime)
    backend: Any = SimpleNamespace(launcher=lambda _: launcher())
    runtime._backends = {"prefill": backend}
    shape = SparseShape(9, 2000, 1000, op="prefill")
    assert runtime.union_bytes(plan(shape), shape) == 3 * 9232 + 9 * 2
    assert runtime.union_bytes(plan(shape, WS), shape) == 0
