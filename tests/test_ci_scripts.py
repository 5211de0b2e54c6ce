# SPDX-License-Identifier: MIT
"""The scripts of .ci/ that judge results."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

TINY = """
[[measure]]
op = "decode"
backend = "cpu"
rows = [1]
context = [256]
candidates = [128]
rounds = 2
"""


@pytest.fixture
def script(root: Path, tmp_path: Path, environment_of_children: Any) -> Callable[..., Any]:
    """Run a script of .ci/ in an empty folder, with this environment's dsa-bench."""

    def call(name: str, *argv: str) -> Any:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        runner = [sys.executable] if name.endswith(".py") else ["bash"]
        return subprocess.run(
            [*runner, str(root / ".ci" / name), *argv], cwd=tmp_path, env=environment_of_children({"PATH": path}),
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    return call


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two equal folders with a page, a picture of each kind and a table."""
    for name in ("committed", "made"):
        folder = tmp_path / name / "gpu"
        folder.mkdir(parents=True)
        (folder / "x.svg").write_text("<svg/>\n")
        (folder / "x.csv").write_text("a,b\n")
        (folder / "x.md").write_text("page\n")
        gradient = np.tile(np.arange(100, dtype=np.uint8), (60, 1))
        Image.fromarray(np.stack([gradient] * 3, axis=2)).save(folder / "x.png")
    return tmp_path / "committed", tmp_path / "made"


def repaint(path: Path, change: Callable[[Any], Any]) -> None:
    Image.fromarray(change(np.array(Image.open(path))).astype(np.uint8)).save(path)


def spot(pixels: Any) -> Any:
    pixels[:10, :10] = 255
    return pixels


def test_equal_results_and_pixels_that_nearly_are(script: Any, two: Any) -> None:
    assert script("same_results.py", "committed", "made").returncode == 0
    repaint(two[1] / "gpu" / "x.png", lambda pixels: pixels + 1)
    assert script("same_results.py", "committed", "made").returncode == 0


@pytest.mark.parametrize("name", ["x.svg", "x.csv", "x.md"])
def test_one_byte_is_a_difference(script: Any, two: Any, name: str) -> None:
    (two[1] / "gpu" / name).write_text("other\n")
    done = script("same_results.py", "committed", "made")
    assert (done.returncode, done.stderr) == (1, f"gpu/{name}: is not what the records make\n")


def test_a_spot_another_size_and_files_that_are_missing(script: Any, two: Any) -> None:
    committed, made = (folder / "gpu" for folder in two)
    repaint(made / "x.png", spot)
    assert "x.png: differs by" in script("same_results.py", "committed", "made").stderr
    repaint(made / "x.png", lambda pixels: pixels[:50])
    assert "has 100 x 60 pixels, and the records make 100 x 50" in script("same_results.py", "committed", "made").stderr
    (committed / "x.png").unlink()
    (made / "x.svg").unlink()
    done = script("same_results.py", "committed", "made")
    assert done.returncode == 1
    assert "x.png: is made from the records and not committed" in done.stderr
    assert "x.svg: is committed and no longer made" in done.stderr


def test_regenerating_makes_what_is_committed(script: Any, root: Path, tmp_path: Path) -> None:
    """Of one folder; .ci/run does it for all, and compares bytes."""
    shutil.copytree(root / "results" / "nvidia-h200" / "seed-fallback", tmp_path / "results" / "gpu")
    (stale := tmp_path / "results" / "gpu" / "20261130T044733Z_fa1b1d1-league.svg").write_text("stale")
    done = script("regenerate", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert not stale.exists()
    made, committed = tmp_path / "results" / "gpu", root / "results" / "nvidia-h200" / "seed-fallback"
    assert sorted(path.name for path in made.iterdir()) == sorted(path.name for path in committed.iterdir())
    for page in committed.glob("*.md"):
        assert (made / page.name).read_text() == page.read_text()
    assert (tmp_path / "results" / "README.md").read_text().startswith("# Results\n")


def test_the_gpu_job_compares_with_the_record_of_the_same_plan(script: Any, process: Any, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    alone = script("gpu", "tiny.toml", "first", "--backend", "cpu")
    assert alone.returncode == 1
    assert "nothing was compared with a committed record" in alone.stderr
    shutil.copytree(tmp_path / "first" / "results", tmp_path / "results")
    done = script("gpu", "tiny.toml", "second", "--backend", "cpu")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "second" / "report.md").read_text().startswith("# Results\n")
    assert "## results/" in (tmp_path / "second" / "compare.md").read_text()
    (tmp_path / "tiny.toml").write_text(TINY.replace("[128]", "[64]"))
    assert script("gpu", "tiny.toml", "third", "--backend", "cpu").returncode == 1
