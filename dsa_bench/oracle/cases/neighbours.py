# SPDX-License-Identifier: MIT
"""Cases of neighbouring rows: what a kernel that reads the candidates of four rows once must keep apart."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from dsa_bench.model.inputs import SparseInputs
from dsa_bench.oracle.cases.case import BOUND, Case, Setting
from dsa_bench.oracle.cases.rows import row_inputs

Positions = Sequence[int]
CONTEXT = 523
"""What row_inputs makes of 512 candidates."""
MANY = range(20, 420)
SINK = 200


def _rows(*lists: Positions) -> SparseInputs:
    """Data like a model's with these lists, padded."""
    inputs = row_inputs(rows=len(lists), valid=512)
    inputs.selected[:] = -1
    for row, positions in enumerate(lists):
        inputs.selected[row, : len(positions)] = positions
    return inputs


def _sink(*lists: Positions) -> SparseInputs:
    """One position, of which few rows have it, lies far above all others."""
    inputs = _rows(*lists)
    inputs.query[:, :, 0], inputs.key[:, :, 0], inputs.key[:, SINK, 0] = 40.0, -40, 127
    return inputs


def _without(positions: Positions, *gone: int) -> Positions:
    return [position for position in positions if position not in gone]


def _shuffled(positions: Positions) -> Positions:
    return [int(position) for position in np.random.default_rng(0).permutation(list(positions))]


_LISTS: dict[str, tuple[Positions, ...]] = {
    "four identical": (MANY, MANY, MANY, MANY),
    "four of one candidate": ((7,), (7,), (7,), (7,)),
    "four, each without what the others have": tuple(range(4 * row, 400 + 4 * row) for row in range(4)),
    "four, the last late": (MANY, MANY, MANY, range(35, 420)),
    "four, a repeated candidate": (MANY, MANY, [*MANY, 21], MANY),
    "four, one unordered": (MANY, MANY, [*MANY[:40], *_shuffled(MANY[40:])], MANY),
    "four and three": (MANY, MANY, MANY, MANY, MANY, MANY, MANY),
    **{f"four, a union of {size}": (range(size),) * 3 + (range(3, size),) for size in (64, 65, 128, 512)},
    "identical": (MANY, MANY),
    "disjoint": (range(250), range(250, 500)),
    "an odd row": (MANY, MANY, MANY),
    "one more each": tuple(range(row + 190) for row in range(6)),
    "unordered": (_shuffled(MANY), MANY),
    "one empty": (MANY, (), (), MANY),
    "both empty": ((), ()),
    "one candidate": ((7,), (7,)),
    "repeated in the first": ([*MANY, 21], MANY),
    "repeated in the second": (MANY, [*MANY[:64], *MANY]),
    "repeated in both": ([5] * 512, [5] * 512),
    "the second late": (MANY, range(220, 420)),
    "the second early": (MANY, range(20, 120)),
    **{f"a union of {size}": (range(size - 4), range(4, size)) for size in (63, 64, 65, 128, 129, 512)},
    "both ends": (range(0, CONTEXT, 2), range(CONTEXT - 511, CONTEXT)),
}
_SINKS: dict[str, tuple[Positions, ...]] = {
    "four, a sink of the third": (_without(MANY, SINK), _without(MANY, SINK), MANY, _without(MANY, SINK)),
    "a sink of the first": (MANY, _without(MANY, SINK)),
    "a sink of the second": (_without(MANY, SINK), MANY),
    "a sink of none": (_without(MANY, SINK), _without(MANY, SINK, 201)),
}

NEIGHBOURS = Case(
    "neighbours",
    "rows that share all, some or none of their candidates",
    tuple(
        Setting(label, partial(build, *lists))
        for build, settings in ((_rows, _LISTS), (_sink, _SINKS))
        for label, lists in settings.items()
    ),
    tolerance=BOUND,
)
