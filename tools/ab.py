# SPDX-License-Identifier: MIT
"""Time one decode kernel of two kernel folders in the same rounds: `python tools/ab.py OLD/kernels NEW/kernels`.

Both are compiled side by side, checked against FP64 and launched on one stream, over the same inputs. Prints new / old
for each cell, and old / old, the null control.
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from dsa_bench.backends.base import Backend
from dsa_bench.bench.rounds import Stop, pilot, round_slots, take_rounds
from dsa_bench.bench.timers import Timer
from dsa_bench.bench.variant import Variant
from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.model.errors import GateFailed
from dsa_bench.model.inputs import SparseInputs
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import SparseShape
from dsa_bench.oracle.attention import reference
from dsa_bench.stats.location import Estimate
from dsa_bench.stats.verdict import judge
from dsa_bench.sweep.check import Checker


def compare(old: Backend, new: Backend, timer: Timer, inputs: SparseInputs, kernel: str, rounds: int) -> str:
    """One line: median times, ratio new / old with its interval, verdict. GateFailed if either gives a wrong result."""
    variants = [_checked(name, backend, inputs, kernel) for name, backend in (("old", old), ("new", new))]
    slots = round_slots(variants, "old", pilot(variants, timer))
    times: dict[tuple[str, bool], dict[int, float]] = {}
    for sample in take_rounds(slots, timer, Stop(rounds)):
        if sample.timing is not None:
            times.setdefault((sample.variant, sample.control), {})[sample.round] = sample.timing.attention_us
    timer.forget()
    old_us, new_us, control_us = (
        [times[slot][index] for index in range(rounds)] for slot in (("old", False), ("new", False), ("old", True))
    )
    judgement, null = judge(new_us, old_us), judge(control_us, old_us)
    return (
        f"rows {inputs.shape.rows}, {kernel}: {statistics.median(old_us):.2f} -> {statistics.median(new_us):.2f} us, "
        f"new / old {_interval(judgement.ratio)}: {judgement.verdict}; old / old {_interval(null.ratio)}"
    )


def _checked(name: str, backend: Backend, inputs: SparseInputs, kernel: str) -> Variant:
    plan = backend.geometry.plan(kernel, inputs.shape, None if kernel == "previous" else 0)
    buffers = backend.load(inputs, "warm")
    launch = buffers.launcher(plan)
    outcome = Checker(backend, inputs, buffers, reference(inputs)).check(plan, launch)
    if outcome.status != "ok":
        raise GateFailed(f"{name} {kernel}: {outcome.reason}")
    return Variant(name, launch, lambda: outcome, backend.device_kernels(kernel))


def _interval(ratio: Estimate | None) -> str:
    if ratio is None:
        return "n/a"
    return f"{ratio.centre:.4f}" + ("" if ratio.interval is None else " [{:.4f}, {:.4f}]".format(*ratio.interval))


def main(arguments: Sequence[str] | None = None) -> None:
    from dsa_bench.backends.cuda.backend import CudaBackend
    from dsa_bench.bench.select import open_timer

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--kernels", nargs="+", default=["int8-tc"])
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--query-std", type=float, default=1.4)
    options = parser.parse_args(arguments)
    old = CudaBackend("decode", options.old)
    new = CudaBackend("decode", options.new, old.stream)
    timer, _ = open_timer("auto", old, "cuda")
    for rows in options.rows:
        inputs = sparse_inputs(SparseShape(rows), DataSpec(query_std=options.query_std))
        for kernel in options.kernels:
            print(compare(old, new, timer, inputs, kernel, options.rounds), flush=True)


if __name__ == "__main__":
    main()
