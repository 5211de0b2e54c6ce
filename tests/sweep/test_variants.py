# SPDX-License-Identifier: MIT
"""What a measured cell says of the dispatcher on a GPU, whose backend has loaded one operator's kernels."""

from types import SimpleNamespace
from typing import Any

import pytest

from dsa_bench.backends.cuda.backend import DEVICE_KERNELS
from dsa_bench.model.call import LaunchSite, LoadedKernel
from dsa_bench.model.device import DeviceFacts
from dsa_bench.model.errors import BadInput
from dsa_bench.model.request import SparseRequest
from dsa_bench.model.shape import Op, SparseShape
from dsa_bench.splits.geometry import CudaSparse
from dsa_bench.sweep.variants import Place, cell_choices, sides_of

OPTIONS = [(f"ep.cuda.dsa_{name}", "1") for name in ("decode_int8_tc", "prefill_int8_tc", "prefill_int8_union")]


def taken(op: Op, rows: int, **failed: str) -> str:
    """The kernel that the dispatcher is said to take on a GPU of SM 9.0."""
    functions = [function for function, *_ in DEVICE_KERNELS[op].values()]
    kernels = {name: LoadedKernel(90, 75264) for name in functions} | failed
    site = LaunchSite(90, 232448, kernels)
    device = DeviceFacts("cuda", "a GPU", 132, "9.0")
    backend: Any = SimpleNamespace(
        device=device, geometry=CudaSparse(396, 3), site=lambda: site, kernel_hash=lambda _: "ab" * 8
    )
    request = SparseRequest((SparseShape(rows, 8192, 2048, op=op),), sides=sides_of(OPTIONS)).on("cuda")
    (choice,) = cell_choices(request, Place.of(request, backend), request.shapes[0])
    return choice.kernel


def test_each_operator_is_asked_about_its_own_kernels() -> None:
    assert taken("decode", 8) == "int8-digits decode"
    assert taken("prefill", 256) == "int8-union prefill"
    assert taken("prefill", 128) == "int8-ws prefill"
    assert taken("prefill", 256, prefill_int8_union="it did not compile") == "int8-ws prefill"


@pytest.mark.parametrize(
    ("op", "rows", "said"),
    [("decode", 256, "takes int8-union prefill for"), ("prefill", 8, "takes int8-digits decode for")],
)
def test_a_cell_of_the_other_operator_is_refused_as_the_dispatcher_takes_it(op: Op, rows: int, said: str) -> None:
    """Not by what the backend of this one has not loaded."""
    with pytest.raises(BadInput, match=said):
        taken(op, rows)
