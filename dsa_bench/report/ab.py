# SPDX-License-Identifier: MIT
"""The two sides of one run against each other: B is the head, A the base. A pure function of a run."""

from dataclasses import replace

from dsa_bench.model.errors import BadInput
from dsa_bench.model.run import Run
from dsa_bench.model.sides import SIDES, Side, at_side, plain_kernel, side_of
from dsa_bench.report.compare import Terms, compare_sides
from dsa_bench.report.comparison import Comparison
from dsa_bench.report.sides import SideCell, side_cells


def compare_ab(run: Run, names: tuple[str, str], commits: tuple[str, str], terms: Terms) -> Comparison:
    """Raises BadInput if the run has no cell with two sides."""
    cells = side_cells(run, terms.metric)
    a, b = ({cell: [_of_side(one, side) for one in modes] for cell, modes in cells.items()} for side in SIDES)
    if not any(one.checks for modes in (*a.values(), *b.values()) for one in modes):
        raise BadInput("the run has no kernel of a side A or B; name one that dsa-bench ab recorded")
    return compare_sides((a, b), names, commits, terms)


def _of_side(cell: SideCell, side: Side) -> SideCell:
    """The cell with one side's variants, under the names that they have in any run; the null control is both sides'."""
    checks = {name: check for name, check in cell.checks.items() if side_of(check.kernel) == side}
    plain = {
        name: name.replace(at_side(plain_kernel(check.kernel), side), plain_kernel(check.kernel), 1)
        for name, check in checks.items()
    }
    return replace(
        cell,
        checks={
            plain[name]: replace(check, variant=plain[name], kernel=plain_kernel(check.kernel))
            for name, check in checks.items()
        },
        times={plain[name]: times for name, times in cell.times.items() if name in plain},
        failures={plain[name]: reason for name, reason in cell.failures.items() if name in plain},
    )
