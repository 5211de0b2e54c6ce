# SPDX-License-Identifier: MIT
"""One entry of a sweep file, whatever its operator: its plan, and its backend with what measures it there."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dsa_bench.cli.dense import measure_dense
from dsa_bench.cli.hyper import measure_cells
from dsa_bench.cli.measure import measure
from dsa_bench.cli.part import Part
from dsa_bench.model.dense_request import DenseRequest
from dsa_bench.model.device import DeviceFacts
from dsa_bench.model.hyper_request import HyperRequest
from dsa_bench.model.request import SparseRequest
from dsa_bench.model.run import Run

if TYPE_CHECKING:
    from dsa_bench.sweep.runs import Measured

Request = SparseRequest | HyperRequest | DenseRequest


@dataclass(frozen=True, slots=True)
class OpenEntry:
    """A request on the backend that was opened for it.

    said     what to tell the user of the backend
    is_run   whether a recorded run is one of this request on this device
    measure  takes the record, whether it is gone on with, and the request's place in the sweep; closes the backend
    """

    device: DeviceFacts
    said: list[str]
    is_run: Callable[[Run], bool]
    measure: "Callable[[Path, bool, Part], Measured]"
    close: Callable[[], None]


def open_entry(request: Request, backend_name: str) -> OpenEntry:
    """Raises CannotMeasure naming what the backend lacks."""
    if isinstance(request, HyperRequest):
        return _open_hyper(request, backend_name)
    return (
        _open_dense(request, backend_name) if isinstance(request, DenseRequest) else _open_sparse(request, backend_name)
    )


def planned_entry(request: Request, backend_name: str) -> str:
    """The plan as JSON. Raises BadInput for options that the backend does not have."""
    from dsa_bench.sweep.dense_plan import dense_plan
    from dsa_bench.sweep.hyper_plan import hyper_plan
    from dsa_bench.sweep.plan import plan_document

    if isinstance(request, HyperRequest):
        return hyper_plan(request, backend_name)
    if isinstance(request, DenseRequest):
        return dense_plan(request, backend_name)
    return plan_document(request, backend_name, None)


def _open_sparse(request: SparseRequest, backend_name: str) -> OpenEntry:
    from dsa_bench.backends.select import open_backend
    from dsa_bench.sweep.cells import is_run_of

    backend, said = open_backend(backend_name, request.op, request.pad_smem)

    def measured(record: Path, resume: bool, part: Part) -> "Measured":
        return measure(request, backend_name, record, resume, explain=False, opener=lambda: backend, part=part)

    is_run = partial(is_run_of, request=request.on(backend.device.backend), backend=backend)
    return OpenEntry(backend.device, [said] if said else [], is_run, measured, backend.close)


def _open_hyper(request: HyperRequest, backend_name: str) -> OpenEntry:
    from dsa_bench.backends.hyper import open_hyper
    from dsa_bench.sweep.hyper import HyperOperator
    from dsa_bench.sweep.runs import is_run_of

    backend, said = open_hyper(backend_name, request.op)

    def measured(record: Path, resume: bool, part: Part) -> "Measured":
        return measure_cells(request, backend_name, record, resume, opener=lambda: (backend, []), part=part)

    operator = HyperOperator(request.on(backend.device.backend), backend, request.policy.l2)
    is_run = partial(is_run_of, operator=operator)
    return OpenEntry(backend.device, said, is_run, measured, backend.close)


def _open_dense(request: DenseRequest, backend_name: str) -> OpenEntry:
    from dsa_bench.backends.dense import open_dense_decode
    from dsa_bench.sweep.dense import DenseOperator
    from dsa_bench.sweep.runs import is_run_of

    backend, said = open_dense_decode(backend_name)

    def measured(record: Path, resume: bool, part: Part) -> "Measured":
        return measure_dense(request, backend_name, record, resume, opener=lambda: backend, part=part)

    operator = DenseOperator(request.on(backend.device.backend), backend, request.policy.l2)
    is_run = partial(is_run_of, operator=operator)
    return OpenEntry(backend.device, [said] if said else [], is_run, measured, backend.close)
