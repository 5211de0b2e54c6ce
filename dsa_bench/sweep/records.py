# SPDX-License-Identifier: MIT
"""Records of a sweep on disk: what a new one is called, and which of those that there are to go on with."""

from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path

import dsa_bench
from dsa_bench.model.dense_request import DenseRequest
from dsa_bench.model.errors import BadInput
from dsa_bench.model.hyper_request import HyperRequest
from dsa_bench.model.request import SparseRequest
from dsa_bench.model.run import Run, complete_rounds, read_run
from dsa_bench.sweep.header import source_revision

Request = SparseRequest | HyperRequest | DenseRequest


def new_record(folder: Path) -> Path:
    """<utc>_<commit>.jsonl in a sweep's folder, an empty file that no other process has; a taken name gets a number."""
    commit, dirty = source_revision()
    revision = f"v{dsa_bench.__version__}" if commit is None else commit[:7] + ("-dirty" if dirty else "")
    stem = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}_{revision}"
    path, number = folder / f"{stem}.jsonl", 2
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path.open("x").close()
            return path
        except FileExistsError:
            path, number = folder / f"{stem}_{number}.jsonl", number + 1
        except OSError as error:
            raise BadInput(f"{path}: cannot be written ({error.strerror}); name other --results") from error


def record_to_resume(
    folder: Path,
    request: Request,
    is_run: Callable[[Run], bool],
    taken: Collection[Path],
    passed_over: Callable[[str], None],
) -> tuple[Path, bool] | None:
    """The newest record of this request on this device, and whether it is complete; None if there is none.

    is_run  whether a recorded run is one of the request on the device
    An unfinished one comes before complete ones. `taken` are other entries'. A file that is no run is passed over, and
    said so.
    """
    found: list[tuple[bool, Path]] = []
    for path in sorted(folder.glob("*.jsonl")):
        if path in taken:
            continue
        try:
            run = read_run(path)
        except BadInput as error:
            passed_over(f"warning: passed over: {error}")
            continue
        if is_run(run):
            found.append((is_complete(run, request), path))
    unfinished = [path for complete, path in found if not complete]
    if unfinished:
        return unfinished[-1], False
    return (found[-1][1], True) if found else None


def is_complete(run: Run, request: Request) -> bool:
    """Whether nothing of the request is left to measure; one without a number of rounds needs one in each cell."""
    rounds: dict[str, set[int]] = {}
    for cell, index, _ in complete_rounds(run):
        rounds.setdefault(cell, set()).add(index)
    statuses: dict[str, dict[str, bool]] = {}
    for check in run.checks:
        statuses.setdefault(check.cell, {})[check.variant] = check.status == "ok"
    wanted = set(range(request.policy.rounds or 1))
    return all(
        rounds.get(cell, set()) >= wanted or (cell in statuses and not any(statuses[cell].values()))
        for cell in request.cell_keys
    )
