# SPDX-License-Identifier: MIT
"""Clocks, power and temperature of the GPU through NVML. Read only: the card's settings are never changed."""

from collections.abc import Callable
from typing import Any

from dsa_bench.jit.optional import load


def open_clocks() -> Callable[[], dict[str, float]] | None:
    """A reader of device 0's state, or None where NVML cannot be used.

    sm_mhz, memory_mhz · power_w · temperature_c · throttle, NVML's bit mask of reasons why the clock is held down
    """
    try:
        nvml, handle = _device()
        _read(nvml, handle)
    except Exception:  # NVML's errors are classes that it makes as it goes
        return None
    return lambda: _read_or_nothing(nvml, handle)


def power_cap_w() -> float | None:
    """The power limit in force, in watts; None where the card has none to tell."""
    try:
        nvml, handle = _device()
        return nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3
    except Exception:
        return None


def _device() -> tuple[Any, Any]:
    """NVML, and the handle of the device that the run time calls 0."""
    nvml = load("pynvml")
    nvml.nvmlInit()
    return nvml, nvml.nvmlDeviceGetHandleByPciBusId(load("cupy").cuda.runtime.deviceGetPCIBusId(0))


def _read_or_nothing(nvml: Any, handle: Any) -> dict[str, float]:
    """A reading that fails on the way costs its round the clock, not the run."""
    try:
        return _read(nvml, handle)
    except Exception:
        return {}


def _read(nvml: Any, handle: Any) -> dict[str, float]:
    return {
        "sm_mhz": float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "memory_mhz": float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        "power_w": nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
        "temperature_c": float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        "throttle": float(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
    }
