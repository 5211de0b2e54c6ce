# SPDX-License-Identifier: MIT
"""What `dsa-bench mix` and `dsa-bench gate` do with their options, and `check --op mix|gate`."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dsa_bench.cli import options as opt
from dsa_bench.cli.console import emit, note, only_the_result_on_stdout
from dsa_bench.cli.measure import print_measured
from dsa_bench.cli.operator import measure_operator, print_checks
from dsa_bench.cli.part import WHOLE, Part
from dsa_bench.cli.sparse import DEFAULT_ROUNDS
from dsa_bench.model.errors import CannotMeasure
from dsa_bench.model.hyper import GateShape, HyperOp, MixShape
from dsa_bench.model.hyper_request import MIX_KERNELS, HyperRequest, MixKernel
from dsa_bench.model.request import Policy

if TYPE_CHECKING:
    from dsa_bench.backends.hyper import HyperBackend
    from dsa_bench.sweep.runs import Measured

SHAPES: dict[HyperOp, type[MixShape] | type[GateShape]] = {"mix": MixShape, "gate": GateShape}


def measure_hyper(op: HyperOp, options: Mapping[str, Any]) -> None:
    """Measure the cells as the command's options say and print their table; or print what would be measured."""
    request = hyper_request(op, options)
    opt.refuse_contradictions(options)
    from dsa_bench.sweep.hyper_plan import hyper_plan, refuse_gpu_options

    refuse_gpu_options(request, options["backend"])
    if options["plan"]:
        emit(hyper_plan(request, options["backend"]))
        return
    measured = measure_cells(request, options["backend"], options["record"], options["resume"])
    print_measured(measured, options["format"])


def hyper_request(op: HyperOp, options: Mapping[str, Any]) -> HyperRequest:
    """What a command's options, by their names, ask for. Raises BadInput naming one that cannot be used."""
    shape = SHAPES[op]
    sizes = {field.name: options[field.name] for field in fields(shape) if field.name != "rows"}
    rounds, budget_s = options["rounds"], options["budget"]
    rounds = DEFAULT_ROUNDS if rounds is None and budget_s is None else rounds
    return HyperRequest(
        shapes=tuple(shape(rows, **sizes) for rows in options["rows"]),
        kernels=tuple(cast("list[MixKernel]", options.get("kernels", MIX_KERNELS))),
        seed=options["seed"],
        policy=Policy(rounds, budget_s, options["timer"], options["l2"]),
        ceiling=options.get("ceiling", False),
    )


def measure_cells(
    request: HyperRequest,
    backend_name: str,
    record: Path | None,
    resume: bool,
    opener: "Callable[[], tuple[HyperBackend, list[str]]] | None" = None,
    part: Part = WHOLE,
) -> "Measured":
    """Measure the request on the backend asked for.

    opener  opens another backend than `backend_name` says      part  the request's place in a larger run
    """
    from dsa_bench.backends.hyper import open_hyper
    from dsa_bench.sweep.hyper import HyperOperator

    with only_the_result_on_stdout():
        backend, said = opener() if opener else open_hyper(backend_name, request.op)
        try:
            if request.ceiling and backend.device.backend != "cuda":
                raise CannotMeasure("--ceiling: measures GPU kernels, and no GPU is used here; leave it out")
            decided = request.on(backend.device.backend)
            return measure_operator(
                lambda l2: HyperOperator(decided, backend, l2),
                backend, backend_name, decided.policy, said, record, resume, part,
            )  # fmt: skip
        finally:
            backend.close()


def check_hyper_op(op: HyperOp, backend_name: str, format: str) -> None:
    """Check an operator's kernels and print the result. Raises GateFailed for a wrong one, CannotMeasure where a case
    is taken by none."""
    from dsa_bench.backends.hyper import open_hyper
    from dsa_bench.cli.progress import CaseProgress
    from dsa_bench.sweep.hyper_check import check_cases, check_hyper

    backend, said = open_hyper(backend_name, op)
    try:
        for line in said:
            note(line)
        with only_the_result_on_stdout(), CaseProgress(check_cases(op)) as progress:
            results = list(check_hyper(op, backend, progress.begin))
    finally:
        backend.close()
    print_checks(op, results, backend.device, format)
    refused = [f"{result.case} ({result.variant})" for result in results if result.status == "refused"]
    if refused:
        raise CannotMeasure(f"not checked: {'; '.join(refused)}; see the table for the reason")
