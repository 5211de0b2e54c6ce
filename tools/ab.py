# SPDX-License-Identifier: MIT
"""Time one decode kernel of two kernel folders in the same rounds: `python tools/ab.py OLD/kernels NEW/kernels`.

Both are compiled side by side and launched on one stream, over the same inputs. Prints new / old for each cell.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from dsa_bench.backends.cuda.backend import CudaBackend
from dsa_bench.bench.rounds import Stop, pilot, round_slots, take_rounds
from dsa_bench.bench.select import open_timer
from dsa_bench.bench.variant import Checked, Variant
from dsa_bench.data.synthetic import decode_inputs
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import DecodeShape
from dsa_bench.stats.verdict import judge


def compare(old: CudaBackend, new: CudaBackend, shape: DecodeShape, spec: DataSpec, kernel: str, rounds: int) -> str:
    """One line: median times, ratio new / old with its interval, verdict."""
    timer, _ = open_timer("cupti", old, "cuda")
    inputs = decode_inputs(shape, spec)
    variants: list[Variant] = []
    for name, backend in (("old", old), ("new", new)):
        plan = backend.geometry.plan(kernel, shape, 0 if kernel == "int8-tc" else None)
        launch = backend.load(inputs, "warm").launcher(plan)
        variants.append(Variant(name, launch, lambda: Checked("ok"), backend.device_kernels(kernel)))
    slots = round_slots(variants, "old", pilot(variants, timer))
    times: dict[tuple[str, bool], list[float]] = {}
    for sample in sorted(take_rounds(slots, timer, Stop(rounds)), key=lambda sample: sample.round):
        assert sample.timing is not None, sample.reason
        times.setdefault((sample.variant, sample.control), []).append(sample.timing.attention_us)
    reference = times["old", False]
    new_to_old, null = judge(times["new", False], reference), judge(times["old", True], reference)
    medians = f"{sorted(reference)[rounds // 2]:.2f} -> {sorted(times['new', False])[rounds // 2]:.2f} us"
    return (
        f"rows {shape.rows}, {kernel}: {medians}, new / old {_interval(new_to_old.ratio)}: {new_to_old.verdict}; "
        + (f"old / old {_interval(null.ratio)}")
    )


def _interval(ratio: object) -> str:
    centre, low, high = (getattr(ratio, name) for name in ("centre", "low", "high"))
    return f"{centre:.4f}" + ("" if low is None else f" [{low:.4f}, {high:.4f}]")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--kernels", nargs="+", default=["int8-tc"])
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--query-std", type=float, default=1.4)
    options = parser.parse_args(arguments)
    old = CudaBackend(options.old)
    new = CudaBackend(options.new, old.stream)
    for rows in options.rows:
        for kernel in options.kernels:
            spec = DataSpec(query_std=options.query_std)
            print(compare(old, new, DecodeShape(rows), spec, kernel, options.rounds), flush=True)


if __name__ == "__main__":
    main()
