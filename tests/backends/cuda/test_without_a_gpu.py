# SPDX-License-Identifier: MIT
"""What the GPU backend says where something is missing; doubles stand in for the device, the compiler and CUPTI."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dsa_bench.backends.cuda import backend as cuda
from dsa_bench.backends.cuda import launch, memory
from dsa_bench.backends.select import open_backend
from dsa_bench.bench import gpu_timers, profilers
from dsa_bench.bench.select import open_timer
from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.model.call import LoadedKernel
from dsa_bench.model.device import DeviceFacts
from dsa_bench.model.errors import BadInput, CannotMeasure, CompileFailed, VariantRefused
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import SparseShape

SHAPE = SparseShape(1, 256, 128)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Callable[..., cuda.CudaBackend]:
    """`device("7.5")` opens a backend on such a device; `broken` names modules that do not compile."""

    def make(capability: str, broken: tuple[str, ...] = (), pad_smem: int = 0) -> cuda.CudaBackend:
        facts = DeviceFacts("cuda", "Fake", 40, capability, 4 << 20)

        def compile_each(names: list[str], *_: Any, **__: Any) -> dict[str, Any]:
            compiled: dict[str, Any] = {name: SimpleNamespace(kernels=DEVICE_KERNELS[name]) for name in names}
            return compiled | {name: CompileFailed(f"{name} is broken") for name in broken}

        monkeypatch.setattr(cuda, "cuda_device", lambda: facts)
        monkeypatch.setattr(cuda, "compile_each", compile_each)
        monkeypatch.setattr(cuda, "load_module", lambda compiled: compiled)

        def kernel(_: Any, name: str, pad: int) -> Any:
            return SimpleNamespace(name=name, pad=pad, resident_ctas=lambda: 1 if pad else 3)

        monkeypatch.setattr(cuda, "Kernel", kernel)
        return cuda.CudaBackend(stream=SimpleNamespace(ptr=1, synchronize=lambda: None), pad_smem=pad_smem)

    return make


DEVICE_KERNELS = {
    "dsa/decode_grouped": ["decode_grouped"],
    "dsa/decode_int8_tc": ["decode_int8_tc"],
    "dsa/decode_digits": ["decode_digits_resident"],
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


def test_padding_reaches_the_split_kernel_alone_and_the_slots_follow(device: Any) -> None:
    """The occupancy with the padding decides the rule's slots, and what the record says of the device."""
    plain, padded = device("9.0"), device("9.0", pad_smem=40_000)
    assert {name: kernel.pad for name, kernel in padded._kernels.items() if kernel.pad} == {"decode_int8_tc": 40_000}
    assert (plain.geometry.slots.ctas, padded.geometry.slots.ctas) == (120, 40)
    assert (plain.device.resident_ctas, padded.device.resident_ctas) == (3, 1)
    assert padded.geometry.plan("int8-tc", SparseShape(8), 0).split.splits == 2  # 40 slots: 2 x 16 CTAs fit
    assert device("7.5").device.resident_ctas is None


@pytest.mark.parametrize("order", [1, -1])
def test_kernels_that_count_as_one_need_the_largest_block_of_them(order: int) -> None:
    """Static and dynamic together, wherever it stands; the gates are to allow all of them."""
    kernels: list[Any] = [
        SimpleNamespace(
            facts=SimpleNamespace(static_smem_bytes=static), dynamic_smem_bytes=dynamic, ptx_target=lambda: 90
        )
        for static, dynamic in ((1024, 100), (16, 2048), (512, 1024))
    ]
    assert cuda._as_one(kernels[::order]) == LoadedKernel(90, 2064)


class FakeDriver:
    """An H200's shared memory, and what a kernel asked for."""

    CUfunction = staticmethod(lambda pointer: pointer)
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="limit")
    CUdevice_attribute = SimpleNamespace(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN="opt in")
    CUresult = SimpleNamespace(CUDA_SUCCESS=0)

    def __init__(self) -> None:
        self.asked: list[int] = []

    def cuCtxGetDevice(self) -> tuple[int, int]:
        return 0, 0

    def cuDeviceGetAttribute(self, attribute: str, _: int) -> tuple[int, int]:
        assert attribute == "opt in"
        return 0, 232_448

    def cuFuncSetAttribute(self, _: int, attribute: str, value: int) -> tuple[int]:
        assert attribute == "limit"
        self.asked.append(value)
        return (0,)

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, _: int, threads: int, smem: int) -> tuple[int, int]:
        return 0, 232_448 // (smem + 1024)


def test_a_padded_kernel_asks_for_its_own_and_the_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    monkeypatch.setattr(launch, "load", lambda _: driver)
    facts = SimpleNamespace(dynamic_smem_bytes=70_000, static_smem_bytes=48, constants={"threads": 128})
    module: Any = SimpleNamespace(
        function=lambda _: SimpleNamespace(ptr=1), compiled=SimpleNamespace(kernels={"decode_int8_tc": facts})
    )
    assert launch.Kernel(module, "decode_int8_tc").resident_ctas() == 3
    assert launch.Kernel(module, "decode_int8_tc", 100_000).resident_ctas() == 1
    assert launch.Kernel(module, "decode_int8_tc", 162_400).dynamic_smem_bytes == 232_400
    assert driver.asked == [70_000, 170_000, 232_400]
    with pytest.raises(
        BadInput, match=r"--pad-smem 162401: .* needs 232449 bytes .* has 232448; ask for at most 162400"
    ):
        launch.Kernel(module, "decode_int8_tc", 162_401)


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
