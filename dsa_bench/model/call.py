# SPDX-License-Identifier: MIT
"""One call on other people's arrays, and what is known of the place where it is launched."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class TensorView:
    """A caller's array, read once and never copied.

    dtype    "bfloat16", "int8", "int32", "float32" ...; the bits of BF16 in uint16 count as "bfloat16"
    address  of its first element, in bytes
    device   "cpu", or "cuda" with the number `index`
    owner    the array itself, which keeps the memory alive
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    address: int
    nbytes: int
    device: str
    index: int
    owner: Any


@dataclass(frozen=True, slots=True, eq=False)
class SparseCall:
    """The tensors of one call, shaped and typed as SparseInputs says, with its output and its softmax scale."""

    query: TensorView
    key: TensorView
    value: TensorView
    key_scale: TensorView
    value_scale: TensorView
    selected: TensorView
    out: TensorView
    scale: float

    @property
    def tensors(self) -> dict[str, TensorView]:
        """Every tensor by name, the output last."""
        views = (
            self.query, self.key, self.value, self.key_scale, self.value_scale, self.selected, self.out,
        )  # fmt: skip
        return {view.name: view for view in views}


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    """One kernel as a device loaded it.

    ptx         the PTX target that its code was compiled for, 10 x major + minor; a module of older PTX than the
                device's holds the bodies of the older architecture
    smem_bytes  shared memory of a block, static and dynamic
    """

    ptx: int
    smem_bytes: int


@dataclass(frozen=True, slots=True)
class LaunchSite:
    """What a GPU and the modules loaded on it decide about a launch.

    sm                 10 x major + minor of the compute capability
    smem_opt_in_bytes  shared memory that a block may have at most
    kernels            by the name of the device function; in place of a kernel that is not there, the reason
    """

    sm: int
    smem_opt_in_bytes: int
    kernels: Mapping[str, LoadedKernel | str]
