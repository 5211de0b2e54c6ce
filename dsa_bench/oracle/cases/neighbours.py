# SPDX-License-Identifier: MIT
"""Cases of neighbouring rows: what a kernel that reads the candidates of four rows once must keep apart."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from dsa_bench.model.inputs import SparseInputs
from dsa_bench.oracle.cases.case import BOUND, Case, Setting
from dsa_bench.oracle.cases.rows import row_inputs
from dsa_bench.oracle.cases.sinks import TAIL, set_sinks

Positions = Sequence[int]
CONTEXT = 523
"""What row_inputs makes of 512 candidates."""
MANY = range(20, 420)
SINK = 200


def _rows(*lists: Positions, query_std: float = 1.4, key_std: float = 40.0) -> SparseInputs:
    """Data like a model's with these lists, padded."""
    inputs = row_inputs(rows=len(lists), valid=512, query_std=query_std, key_std=key_std)
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
    "identical": (MANY,) * 4,
    "disjoint": tuple(range(120 * row, 120 * row + 120) for row in range(4)),
    "three rows": (MANY,) * 3,
    "seven rows": (MANY,) * 7,
    "one more each": tuple(range(row + 190) for row in range(6)),
    "each without what the others have": tuple(range(4 * row, 400 + 4 * row) for row in range(4)),
    "one candidate": ((7,),) * 4,
    "one empty": (MANY, (), MANY, MANY),
    "all empty": ((),) * 4,
    "one unordered": (MANY, MANY, [*MANY[:40], *_shuffled(MANY[40:])], MANY),
    "all unordered": (_shuffled(MANY),) * 4,
    "the second in no order of the first": (MANY, _shuffled(MANY), MANY, MANY),
    "repeated in one": (MANY, MANY, [*MANY, 21], MANY),
    "repeated in one from its second tile on": (MANY, [*MANY[:64], *MANY], MANY, MANY),
    "repeated in all": ([5] * 512,) * 4,
    "the last late": (MANY, MANY, MANY, range(35, 420)),
    "the last too late": (MANY, MANY, MANY, range(220, 420)),
    "the second early": (MANY, range(20, 120), MANY, MANY),
    **{
        f"a union of {size}": (range(size - 4), range(4, size), range(size - 4), range(4, size))
        for size in (63, 64, 65, 128, 129, 512)
    },
    "both ends": (range(0, CONTEXT, 2), range(CONTEXT - 511, CONTEXT)) * 2,
}
_SINKS: dict[str, tuple[Positions, ...]] = {
    "a sink of the first": (MANY, *(_without(MANY, SINK),) * 3),
    "a sink of the third": (_without(MANY, SINK), _without(MANY, SINK), MANY, _without(MANY, SINK)),
    "a sink of all but the second": (MANY, _without(MANY, SINK), MANY, MANY),
    "a sink of none": (*(_without(MANY, SINK),) * 3, _without(MANY, SINK, 201)),
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

_ALIKE = tuple(_without(range(500), *range(row + 1, 500, 40)) for row in range(4))
_SINKS_OF_ALL: dict[str, Positions] = {
    "one in the first tile": (5,),
    "each quarter of the first tile": (0, 6, 32, 34),
    "three quarters of the first tile": (0, 6, 32),
    "one in the fourth tile": (200,),
    "each quarter of the fourth tile": (192, 198, 224, 226),
    "every tenth": range(5, 500, 10),
}
"""Places in the union of _ALIKE, which are positions too; every row has these. A quarter of a tile: of either half the
first two or the last two of each four candidates."""


def _above_a_tail(sinks: Positions, lead: float, *lists: Positions) -> SparseInputs:
    """A tail whose logits deviate by 1 nat: of those whose mean + 2 deviations lie at one place, it weighs least.

    The rows have the same queries, each at other heads, so that one short key makes a sink of all of them.
    """
    inputs = _rows(*lists, query_std=2.8, key_std=8.0)
    shape = inputs.shape
    of_first = inputs.query[0].reshape(shape.kv_heads, shape.group, shape.head_size)
    for row in range(1, shape.rows):
        inputs.query[row] = np.roll(of_first, row, axis=1).reshape(inputs.query[row].shape)
    set_sinks(inputs, sinks, lead)
    return inputs


def _sinks_at(lead: float) -> tuple[Setting, ...]:
    some = (_without(_ALIKE[0], 5), _ALIKE[1], _ALIKE[2], _without(_ALIKE[3], 5))
    return (
        *(
            Setting(f"{label}, {lead:g} nats", partial(_above_a_tail, sinks, lead, *_ALIKE))
            for label, sinks in _SINKS_OF_ALL.items()
        ),
        Setting(f"one, of the middle rows, {lead:g} nats", partial(_above_a_tail, (5,), lead, *some)),
    )


NEIGHBOUR_SINKS = Case(
    "neighbour-sinks",
    "rows that share tiles have sinks without a value, 8, 12 and 16 nats above the tail that is the output",
    tuple(setting for lead in (8.0, 12.0, 16.0) for setting in _sinks_at(lead)),
    tolerance=TAIL,
)
