# SPDX-License-Identifier: MIT
"""`dsa-bench regret`."""

from dsa_bench.cli import options as opt
from dsa_bench.cli.console import emit, note
from dsa_bench.model.errors import GateFailed


def regret(
    run: opt.RunFile,
    rule: opt.ScoredRules = None,
    model: opt.Model = None,
    resident: opt.RecordedResident = None,
    max_regret: opt.MaxRegret = None,
    format: opt.Format = "table",
) -> None:
    """Say what a split rule costs against the best measured launch. Cross-fitted, for each shape and overall.

    Without --rule: auto, whatever ran for 0 tiles per split. --max-regret is exit 1 if the mean's interval lies above
    it, and if a shape, a right variant or the interval is missing.
    """
    from dsa_bench.cli.scores import scores_of
    from dsa_bench.report.regret import beyond
    from dsa_bench.report.regret_render import REGRET_WRITERS, ROWS_ONLY, missing_lines

    scores = scores_of(run, rule, model, resident, every=False)
    emit(REGRET_WRITERS[format](scores))
    for line in missing_lines(scores) if format in ROWS_ONLY else ():
        note(f"warning: {line}")
    failures = [] if max_regret is None else beyond(scores, max_regret)
    if failures:
        raise GateFailed(f"--max-regret: {'; '.join(failures)}")
