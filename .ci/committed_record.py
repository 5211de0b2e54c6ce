# SPDX-License-Identifier: MIT
"""Print the newest committed record that one just measured can be compared with; nothing if there is none.

That is one of the same folder, so device and sweep, over the same cells and data, by the same timer and L2 mode.
Usage: python .ci/committed_record.py RESULTS MEASURED RECORD, where RECORD lies in MEASURED as its like in RESULTS.
"""

import sys
from pathlib import Path

from dsa_bench.model.run import read_run


def measured_alike(record: Path) -> object:
    run = read_run(record)
    return {(check.cell, check.data_hash) for check in run.checks}, {(visit.timer, visit.l2) for visit in run.visits}


def main(results: Path, measured: Path, record: Path) -> None:
    folder, wanted = results / record.relative_to(measured).parent, measured_alike(record)
    alike = [path for path in sorted(folder.glob("*.jsonl")) if measured_alike(path) == wanted]
    print(alike[-1] if alike else "", end="")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
