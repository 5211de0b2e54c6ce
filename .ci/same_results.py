# SPDX-License-Identifier: MIT
"""Exit 1 unless two folders of results are the same: bytes, and for PNG pixels within a tolerance.

Usage: python .ci/same_results.py COMMITTED MADE

The anti-aliasing of a picture differs slightly between processors and builds of matplotlib's rasteriser: a PNG is the
same if its size is, its pixels differ by at most RMS of 255 steps in the mean square, and at most SHARE of them by more
than STEP.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

RMS, STEP, SHARE = 2.0, 48, 0.001


def main(committed: Path, made: Path) -> int:
    names = sorted({path.relative_to(root) for root in (committed, made) for path in root.rglob("*") if path.is_file()})
    wrong = [f"{name}: {why}" for name in names if (why := difference(committed / name, made / name))]
    for line in wrong:
        print(line, file=sys.stderr)
    return bool(wrong)


def difference(committed: Path, made: Path) -> str | None:
    """What is not the same; None if nothing is."""
    if not committed.is_file():
        return "is made from the records and not committed"
    if not made.is_file():
        return "is committed and no longer made"
    if committed.read_bytes() == made.read_bytes():
        return None
    return pixels(committed, made) if committed.suffix == ".png" else "is not what the records make"


def pixels(committed: Path, made: Path) -> str | None:
    one, other = (np.asarray(Image.open(path).convert("RGB"), np.float64) for path in (committed, made))
    if one.shape != other.shape:
        return f"has {one.shape[1]} x {one.shape[0]} pixels, and the records make {other.shape[1]} x {other.shape[0]}"
    off = np.abs(one - other)
    rms, share = float(np.sqrt(np.mean(off**2))), float(np.mean(off.max(axis=2) > STEP))
    return f"differs by {rms:.2f} RMS, and {share:.2%} of pixels clearly" if rms > RMS or share > SHARE else None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
