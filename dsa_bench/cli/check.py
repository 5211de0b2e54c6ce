# SPDX-License-Identifier: MIT
"""`dsa-bench check`."""

from typing import TYPE_CHECKING, Annotated, cast

import typer

from dsa_bench.cli import options as opt
from dsa_bench.cli.console import emit, note, only_the_result_on_stdout
from dsa_bench.cli.values import name_list, names, one_of
from dsa_bench.model.errors import BadInput, CannotMeasure, GateFailed
from dsa_bench.model.hyper import HYPER_OPS
from dsa_bench.model.request import EMULATIONS, KERNEL_NAMES
from dsa_bench.model.shape import OPS

if TYPE_CHECKING:
    from dsa_bench.model.outcome import CaseResult
    from dsa_bench.model.shape import Op


ALL_OPS = (*OPS, "dense", *HYPER_OPS)
KERNELS = (*KERNEL_NAMES, *EMULATIONS)


def check(
    op: Annotated[
        str, typer.Option("--op", parser=one_of(ALL_OPS), metavar="|".join(ALL_OPS), help="The operator.")
    ] = "decode",
    kernels: Annotated[
        list[str] | None,
        opt.list_option(
            "--kernels",
            name_list(KERNELS),
            f"Of decode and prefill: from {', '.join(KERNELS)}. [default: all that the backend has]",
            "NAME...",
        ),
    ] = None,
    case: Annotated[
        list[str] | None, opt.list_option("--case", names, "Of decode and prefill. [default: every case]", "NAME...")
    ] = None,
    backend: opt.BackendName = "auto",
    format: Annotated[
        str, typer.Option("--format", parser=one_of(("table", "json")), metavar="table|json", help="Of the result.")
    ] = "table",
) -> None:
    """Run every kernel on every numerics case against FP64. An undeclared miss is exit 1 (docs/numerics.md)."""
    if op not in OPS and (kernels is not None or case is not None):
        raise BadInput(f"--kernels, --case: choose among checks of sparse attention; --op {op} runs all of its own")
    if op in HYPER_OPS:
        from dsa_bench.cli.hyper import check_hyper_op

        check_hyper_op(op, backend, format)
        return
    if op == "dense":
        from dsa_bench.cli.dense import check_dense_op

        check_dense_op(backend, format)
        return
    from dsa_bench.backends.select import open_backend
    from dsa_bench.cli.progress import CaseProgress
    from dsa_bench.report.check import check_json, check_text
    from dsa_bench.sweep.numerics import check_cases, chosen_cases, chosen_kernels

    operator = cast("Op", op)
    cases = chosen_cases(case or [], operator)
    opened, said = open_backend(backend, operator)
    results: list[CaseResult] = []

    def show() -> None:
        emit(check_json(results, opened.device) if format == "json" else check_text(results))

    try:
        chosen = chosen_kernels(kernels, opened.device.backend, operator)
        if said:
            note(said)
        with only_the_result_on_stdout(), CaseProgress(len(cases)) as progress:
            for result in check_cases(cases, chosen, opened, progress.begin):
                results.append(result)
    except KeyboardInterrupt:
        note(f"{len(results)} checks had ended, of {len(cases)} cases asked for")
        if results:
            show()
        raise
    finally:
        opened.close()
    show()
    _judge(results)


def _judge(results: "list[CaseResult]") -> None:
    """Raise if a kernel was wrong, or if every check was refused."""
    wrong = [f"{result.case} ({result.kernel})" for result in results if result.status == "WRONG"]
    if wrong:
        raise GateFailed(f"wrong result: {', '.join(wrong)}")
    if all(result.status == "refused" for result in results):
        idle = dict.fromkeys(result.case for result in results)
        raise CannotMeasure(f"no kernel takes {', '.join(idle)}; see the table for the reason")
