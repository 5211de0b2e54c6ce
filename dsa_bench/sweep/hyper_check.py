# SPDX-License-Identifier: MIT
"""`check --op mix` and `check --op gate`: the sigmoids, cells against FP64, and chains of launches."""

from collections.abc import Callable, Iterator

import numpy as np

from dsa_bench.backends.hyper import HyperBackend
from dsa_bench.bench.check import POISON
from dsa_bench.data.hyper import gate_inputs
from dsa_bench.model.cell_key import cell_words
from dsa_bench.model.errors import VariantRefused
from dsa_bench.model.hyper import LAUNCH_MODES, GateShape, HyperOp, MixShape
from dsa_bench.model.hyper_inputs import GateInputs
from dsa_bench.model.hyper_request import GateVariant, HyperRequest, HyperShape, HyperVariant
from dsa_bench.model.operator_result import OperatorResult
from dsa_bench.oracle.hyper import checked_rows
from dsa_bench.sweep.hyper import Checker, bits, drawn

SIGMOIDS_CASE = "sigmoids"
CHAIN_CASE = "chain"
SHAPES: dict[HyperOp, tuple[HyperShape, ...]] = {
    "mix": (MixShape(1), MixShape(8), MixShape(3, 24, rank=40), MixShape(65, 520, rank=1032)),
    "gate": (*map(GateShape, range(1, 9)), GateShape(129), GateShape(5, 64, 128, 24)),
}
"""The sizes of the issue at few rows, the smallest that cross a CTA's edge, and widths that leave a tail."""
CHAIN_ROWS = 8
CHAIN_LAUNCHES = {"cuda": 10_000, "cpu": 20}
"""On the CPU a launch has ended when the next begins, so a chain shows little."""


def check_hyper(op: HyperOp, backend: HyperBackend, begin: Callable[[str], None]) -> Iterator[OperatorResult]:
    """Every check of an operator. `begin` is told each case's name."""
    if op == "mix":
        begin(SIGMOIDS_CASE)
        yield _sigmoids(backend)
    for shape in SHAPES[op]:
        begin(shape.key)
        yield from _cell(op, shape, backend)
    if op == "gate":
        begin(CHAIN_CASE)
        yield from _chains(backend)


def check_cases(op: HyperOp) -> int:
    """How many cases check_hyper begins."""
    return len(SHAPES[op]) + 1


def _sigmoids(backend: HyperBackend) -> OperatorResult:
    tried, wrong, first = backend.sigmoid_differences()
    reason = None if first is None else f"the two sigmoids of {first!r} have different bits, the first of {wrong}"
    status = "WRONG" if wrong else "ok"
    return OperatorResult(SIGMOIDS_CASE, "branchy, branch-free", "bit patterns", tried, wrong, status, reason)


def _cell(op: HyperOp, shape: HyperShape, backend: HyperBackend) -> Iterator[OperatorResult]:
    inputs, case = drawn(shape, seed=shape.rows), cell_words({"op": op, **_texts(shape)})
    buffers = backend.load(inputs, "warm")
    try:
        checker = Checker(backend, inputs, buffers)
        for variant in HyperRequest((shape,), ceiling=False).variants:
            try:
                outcome = checker.check(variant, buffers.call(variant))
            except VariantRefused as refusal:
                yield OperatorResult(case, variant.name, "rows", 0, 0, "refused", str(refusal))
                continue
            wrong = outcome.status != "ok"
            tried = len(checked_rows(shape.rows))
            status = "WRONG" if wrong else "ok"
            yield OperatorResult(case, variant.name, "rows", tried, int(wrong), status, outcome.reason)
    finally:
        buffers.close()


def _texts(shape: HyperShape) -> dict[str, str]:
    return {name: str(value) for name, value in shape.sizes.items()}


def _chains(backend: HyperBackend) -> Iterator[OperatorResult]:
    """Two sets of inputs take turns over one x, and every launch has an output of its own: a projection that read x
    before gate-mul had written it would have the other set's in it."""
    shape = GateShape(CHAIN_ROWS)
    first, other = (gate_inputs(shape, seed) for seed in (1, 2))
    sets = first, GateInputs(other.attention, other.gate, first.ready, first.weight)
    single = [bits(_single(inputs, GateVariant("plain"), backend)) for inputs in sets]
    launches = CHAIN_LAUNCHES[backend.device.backend]
    for mode in LAUNCH_MODES:
        outs = bits(backend.chain(sets, mode, launches))
        expected = np.stack(single)[np.arange(launches) % 2]
        wrong = np.flatnonzero((outs != expected).any(axis=(1, 2)))
        reason = f"launch {wrong[0]} of the chain has other bits than it has alone" if wrong.size else None
        status = "WRONG" if wrong.size else "ok"
        variant = GateVariant(mode).name
        yield OperatorResult(CHAIN_CASE, variant, "launches", launches, int(wrong.size), status, reason)


def _single(inputs: GateInputs, variant: HyperVariant, backend: HyperBackend) -> np.ndarray:
    buffers = backend.load(inputs, "warm")
    try:
        buffers.poison(variant, 0, POISON)
        buffers.call(variant).launch(0)
        return buffers.outputs(variant, 0)["out"]
    finally:
        buffers.close()
