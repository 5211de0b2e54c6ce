# SPDX-License-Identifier: MIT
"""Copies, calls and facts of dense cells on a GPU; doubles stand in for memory, kernels and driver."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsa_bench.backends.cuda import dense_cells
from dsa_bench.backends.cuda.dense_cells import CudaDense, CudaDenseCell
from dsa_bench.data.dense import dense_inputs
from dsa_bench.model.dense import DensePlan, DenseShape
from dsa_bench.model.dense_request import DenseVariant
from dsa_bench.model.errors import OutOfDeviceMemory, VariantRefused

SHAPE = DenseShape(64, 40, 4, 4, 16, 8)
SPLIT = DenseVariant("previous", DensePlan(2, 32), (0,), ("seed-adaptive",))
enqueued: list[Any] = []


@dataclass
class Launch:
    kernel: Any
    grid: tuple[int, int, int]
    arguments: Any
    stream: Any
    ctas: int = field(init=False)

    def __post_init__(self) -> None:
        self.name, self.threads = self.kernel.name, self.kernel.threads
        self.ctas = self.grid[0] * self.grid[1] * self.grid[2]

    def enqueue(self) -> None:
        enqueued.append(self)


def kernel(name: str, **constants: int) -> Any:
    return SimpleNamespace(name=name, threads=128, facts=SimpleNamespace(constants=constants))


class Launcher:
    """Two launches for each call, over the copy of the inputs that they are given."""

    def __init__(self) -> None:
        self.outputs: list[Any] = []

    def kernels(self, *_: Any) -> None: ...

    def launches(self, name: str, plan: DensePlan, inputs: Any, device: Any, workspace: Any, out: Any) -> list[Launch]:
        self.outputs.append(out)
        grid = (inputs.shape.rows, plan.splits, 1)
        return [
            Launch(kernel("attention_split_f16"), grid, (device, workspace), None),
            Launch(kernel("attention_combine_f16"), (4, 1, 1), (), None),
        ]


@pytest.fixture(autouse=True)
def host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Device memory is NumPy's."""
    enqueued.clear()
    uploads = iter(range(1000))
    monkeypatch.setattr(dense_cells, "KernelLaunch", Launch)
    monkeypatch.setattr(dense_cells, "allocate", lambda shape, dtype: np.zeros(shape, dtype))
    monkeypatch.setattr(dense_cells, "uploaded", lambda host, count: np.stack([host] * count))
    monkeypatch.setattr(dense_cells, "allocate_output", lambda shape: np.zeros(32, np.float16))
    monkeypatch.setattr(dense_cells.DenseDeviceInputs, "upload", lambda inputs: next(uploads))
    monkeypatch.setattr(dense_cells, "free_bytes", lambda: 2**20)
    monkeypatch.setattr(dense_cells.DenseWorkspace, "allocate", lambda *_: "workspace")


def cell(cold_bytes: int = 0, shape: DenseShape = SHAPE) -> tuple[CudaDenseCell, Launcher]:
    launcher = Launcher()
    backend: Any = SimpleNamespace(
        launcher=launcher,
        stream="stream",
        facts=lambda *_: {"resident": 4},
        copy_kernel=lambda: kernel("copy_only", tile=8),
    )
    return CudaDenseCell(backend, dense_inputs(shape), cold_bytes), launcher


def test_variants_share_the_tensors_and_have_their_own_output() -> None:
    made, launcher = cell()
    first = made.call(SPLIT)
    made.call(DenseVariant("fast", DensePlan(1, 64), (), ("off",)))
    assert (first.ctas, first.kernels, first.copies) == (8, ("attention_split_f16", "attention_combine_f16"), 1)
    assert dict(first.facts) == {"resident": 4}
    assert launcher.outputs[0] is not launcher.outputs[1]
    first.launch(7)
    assert [launch.name for launch in enqueued] == ["attention_split_f16", "attention_combine_f16"]


def test_cold_launches_rotate_through_copies_that_come_to_twice_the_l2() -> None:
    made, _ = cell(cold_bytes=5 * SHAPE.live_bytes - 1)
    call = made.call(SPLIT)
    assert call.copies == 5
    for number in (0, 4, 5, 7):
        call.launch(number)
    copies = [launch.arguments[0] for launch in enqueued if launch.name == "attention_split_f16"]
    assert copies == [copies[0], copies[0] + 4, copies[0], copies[0] + 2]
    with pytest.raises(VariantRefused, match=r"so a cold L2 takes .* use --l2 warm or more --length"):
        cell(cold_bytes=10**9)[0].call(SPLIT)


def test_the_copy_moves_the_live_bytes_half_read_and_half_written() -> None:
    made, _ = cell()
    call = made.copy_call()
    call.launch(0)
    (launch,) = enqueued
    source, target, vectors = launch.arguments
    assert source.nbytes + target.nbytes == 32 * int(vectors) == SHAPE.live_bytes
    assert (call.ctas, call.kernels, dict(call.facts)) == (-(-int(vectors) // 8), ("copy_only",), {})
    empty, _ = cell(shape=DenseShape(64, 0, 4, 4, 16, 8))
    assert empty.copy_call().ctas == 1


def test_memory_that_is_not_there_refuses_a_variant_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise OutOfDeviceMemory("1 MiB of GPU memory are not there")

    monkeypatch.setattr(dense_cells.DenseDeviceInputs, "upload", full)
    monkeypatch.setattr(dense_cells, "allocate", full)
    with pytest.raises(VariantRefused, match="previous/splits=2,chunk=32: 1 MiB"):
        cell()[0].call(SPLIT)
    with pytest.raises(VariantRefused, match="copy/kv: 1 MiB"):
        cell()[0].copy_call()


def test_copies_that_do_not_fit_are_refused_before_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of 6 MiB with 24 live keys of 65536: each cold copy takes all of it."""
    made, _ = cell(cold_bytes=5 * 24 * 4 * 24 * 2, shape=DenseShape(65536, 24, 4, 4, 16, 8))
    monkeypatch.setattr(dense_cells.DenseDeviceInputs, "upload", lambda inputs: pytest.fail("was uploaded"))
    with pytest.raises(VariantRefused, match=r"5 copies of the cache, 0.1 GiB, and 0.0 GiB are free; use --l2 warm"):
        made.call(SPLIT)


def test_waves_and_occupancy_are_the_documents() -> None:
    """256 CTAs of 128 threads on 132 SMs that hold 4: 0.48 waves, about 11 % of 64 warps; 512: 0.97 and 24 %."""
    backend: Any = SimpleNamespace(
        launcher=SimpleNamespace(resident_ctas=lambda *_: 4), device=SimpleNamespace(sm_count=132), _warps_per_sm=64
    )
    for splits, waves, occupancy in ((16, 0.48, 0.12), (32, 0.97, 0.24), (64, 1.94, 0.25)):
        launch: Any = SimpleNamespace(ctas=16 * splits, threads=128)
        facts = CudaDense.facts(backend, "fast", SHAPE, DensePlan(splits, 64), launch)
        assert (facts["resident"], round(facts["waves"], 2), round(facts["occupancy"], 2)) == (4, waves, occupancy)
