# SPDX-License-Identifier: MIT
"""Print the newest committed record of the same folder and plan as one just measured; nothing if there is none.

Usage: python .ci/committed_record.py RESULTS MEASURED RECORD, where RECORD lies in MEASURED as its like in RESULTS.
"""

import json
import sys
from pathlib import Path


def plan(record: Path) -> object:
    with record.open(encoding="utf-8") as lines:
        return json.loads(lines.readline()).get("plan")


def main(results: Path, measured: Path, record: Path) -> None:
    folder = results / record.relative_to(measured).parent
    alike = [path for path in sorted(folder.glob("*.jsonl")) if plan(path) == plan(record)]
    print(alike[-1] if alike else "", end="")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
