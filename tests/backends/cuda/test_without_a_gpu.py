# SPDX-License-Identifier: MIT
"""What the GPU backend says where something is missing; doubles stand in for the device, the compiler and CUPTI."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dsa_bench.backends.cuda import backend as cuda
from dsa_bench.backends.cuda import memory
from dsa_bench.backends.select import open_backend
from dsa_bench.bench import gpu_timers, profilers
from dsa_bench.bench.select import open_timer
from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.model.device import DeviceFacts
from dsa_bench.model.errors import BadInput, CannotMeasure, CompileFailed, VariantRefused
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import SparseShape

SHAPE = SparseShape(1, 256, 128)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Callable[..., cuda.CudaBackend]:
    """`device("7.5")` opens a backend on such a device; `broken` names modules that do not compile."""

    def make(capability: str, broken: tuple[str, ...] = ()) -> cuda.CudaBackend:
        facts = DeviceFacts("cuda", "Fake", 40, capability, 4 << 20)

        def compile_each(names: list[str], *_: Any, **__: Any) -> dict[str, Any]:
            compiled: dict[str, Any] = {name: SimpleNamespace(kernels=DEVICE_KERNELS[name]) for name in names}
            return compiled | {name: CompileFailed(f"{name} is broken") for name in broken}

        monkeypatch.setattr(cuda, "cuda_device", lambda: facts)
        monkeypatch.setattr(cuda, "compile_each", compile_each)
        monkeypatch.setattr(cuda, "load_module", lambda compiled: compiled)
        monkeypatch.setattr(cuda, "Kernel", lambda _, name: SimpleNamespace(name=name, resident_ctas=lambda: 3))
        return cuda.CudaBackend(stream=SimpleNamespace(ptr=1, synchronize=lambda: None))

    return make


DEVICE_KERNELS = {
    "dsa/decode_grouped": ["decode_grouped"],
    "dsa/decode_int8_tc": ["decode_int8_tc"],
    "dsa/merge": ["merge_partials"],
    "ceiling": ["gather_only", "copy_only"],
}


def calls(backend: cuda.CudaBackend, kernel: str) -> Any:
    plan = backend.geometry.plan(kernel, SHAPE, None if kernel == "previous" else 0)
    return backend.calls(plan, sparse_inputs(SHAPE, DataSpec()), [], None)


def test_below_sm_80_the_tensor_core_kernel_is_refused_and_previous_remains(device: Any) -> None:
    old = device("7.5")
    with pytest.raises(
        VariantRefused, match=r"int8-tc needs a device of SM 8.0 or newer and this is SM 7.5; `previous`"
    ):
        calls(old, "int8-tc")
    with pytest.raises(VariantRefused, match="gather needs"):
        calls(old, "gather")


def test_a_kernel_that_does_not_compile_takes_only_its_own_variants_along(device: Any) -> None:
    backend = device("9.0", broken=("dsa/decode_int8_tc",))
    with pytest.raises(CompileFailed, match="dsa/decode_int8_tc is broken"):
        calls(backend, "int8-tc")


def test_slots_are_sms_times_resident_ctas(device: Any) -> None:
    assert device("9.0").geometry.plan("int8-tc", SparseShape(8), 0).split.splits == 4  # 120 slots: 4 x 16 CTAs fit


def test_cupti_that_is_not_permitted_is_an_error_or_a_fall_back_that_is_said(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Any:
        raise CannotMeasure("CUPTI cannot be used (CUPTI_ERROR_INSUFFICIENT_PRIVILEGES)")

    monkeypatch.setattr(profilers, "open_profiler", refuse)
    monkeypatch.setattr(gpu_timers, "load", lambda _: SimpleNamespace(cuda=None))
    backend = device("9.0")
    with pytest.raises(CannotMeasure, match=r"--timer cupti: CUPTI cannot be used"):
        open_timer("cupti", backend, "cuda")
    timer, said = open_timer("auto", backend, "cuda")
    assert timer.name == "events"
    assert said is not None
    assert "INSUFFICIENT_PRIVILEGES" in said
    with pytest.raises(BadInput, match="--timer wall"):
        open_timer("wall", backend, "cuda")


def test_memory_that_is_not_there_names_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    class OutOfMemory(RuntimeError):
        pass

    def allocate(_: int) -> Any:
        raise OutOfMemory

    runtime = SimpleNamespace(CUDARuntimeError=OutOfMemory, memGetInfo=lambda: (3 << 20, 80 << 20))
    monkeypatch.setattr(
        memory, "load", lambda _: SimpleNamespace(cuda=SimpleNamespace(runtime=runtime, Memory=allocate))
    )
    with pytest.raises(CannotMeasure, match=r"16 MiB of GPU memory are not there \(3 of 80 MiB free\)"):
        memory.allocate((16 << 20,), "int8")


def test_without_a_driver_cuda_is_an_error_and_auto_says_what_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    from dsa_bench.backends.cuda import probe

    monkeypatch.setattr(probe, "missing_gpu", lambda: "no NVIDIA driver (libcuda.so.1) was found")
    with pytest.raises(CannotMeasure, match=r"--backend cuda: no NVIDIA driver"):
        open_backend("cuda")
    backend, said = open_backend("auto")
    backend.close()
    assert backend.device.backend == "cpu"
    assert said is not None
    assert said.startswith("measuring the CPU backend: no NVIDIA driver")
