# SPDX-License-Identifier: MIT
"""What starting the program costs and loads, each in a fresh process."""

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from map_doubles import splits_map
from sweep_doubles import swept

from dsa_bench.dispatch.map_file import write_map
from dsa_bench.model.run import RunWriter
from dsa_bench.model.shape import SparseShape

HEAVY = {"numpy", "rich", "pandas", "matplotlib", "ml_dtypes"}
GPU = {"cupy", "cuda", "cupti", "torch", "pynvml"}
PROBE = """
import json, sys
sys.path.insert(0, sys.argv.pop(1))
{statement}
maps = open("/proc/self/maps").read() if sys.platform == "linux" else ""
print("PROBE", json.dumps([sorted({{name.partition(".")[0] for name in sys.modules}}), "libcuda" in maps]))
"""
STUB = 'raise AssertionError("a GPU library was imported")\n'


@pytest.fixture
def probe(environment_of_children: Any, tmp_path: Path) -> Callable[..., tuple[set[str], bool]]:
    """Run a statement where every GPU library raises when imported: (top-level modules, whether libcuda is mapped)."""
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    for name in GPU:
        (stubs / f"{name}.py").write_text(STUB)

    def call(statement: str) -> tuple[set[str], bool]:
        done = subprocess.run(
            [sys.executable, "-c", PROBE.format(statement=statement), str(stubs)],
            env=environment_of_children(), cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        modules, driver = json.loads(done.stdout.rpartition("PROBE ")[2])
        return set(modules), driver

    return call


def test_importing_loads_nothing(probe: Any) -> None:
    """F6, pytorch/pytorch#138453: nothing that a fork would regret."""
    modules, driver = probe("import dsa_bench")
    assert modules & (HEAVY | GPU | {"typer"}) == set()
    assert not driver


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["decode", "--help"],
        ["report", "--help"],
        ["mix", "--help"],
        ["gate", "--timer", "cupti"],
        ["check", "--help"],
        ["tune", "--help"],
        ["map", "--help"],
        ["map", "explain", "--help"],
        ["decode", "--rows", "x"],
        ["rule", "score", "--help"],
        ["regret", "--help"],
        ["plot", "--help"],
        ["plot", "a", "-o", "b", "--kind", "pie"],
        ["compare", "--help"],
        ["ab", "--help"],
        ["run", "--help"],
        ["compare", "a", "b", "--threshold", "15"],
    ],
)
def test_parsing_options_loads_nothing_heavy(probe: Any, argv: list[str]) -> None:
    """F6, pytorch/pytorch#138453: no driver, no stub touched."""
    modules, driver = probe(f"from dsa_bench.cli.main import run; run({argv})")
    assert modules & (HEAVY | GPU) == set()
    assert not driver


def test_planning_and_reporting_touch_no_gpu(probe: Any, two_cells: Any, tmp_path: Path, root: Path) -> None:
    """F1, NVIDIA/cudf#6602, and F6: commands that measure nothing."""
    record = str(two_cells.write(tmp_path / "r.jsonl"))
    sweep, tuned = tmp_path / "sweep.jsonl", str(tmp_path / "splits.json")
    run = swept([SparseShape(1)], lambda *_: 10.0)
    with RunWriter(sweep) as writer:
        for line in (run.header, *run.checks, *run.visits):
            writer.append(line)
    write_map(Path(tuned), splits_map())
    statement = "from dsa_bench.cli.main import run; " + "; ".join(
        f"assert run({argv}) == 0"
        for argv in (
            ["decode", "--plan"],
            ["decode", "--plan", "--backend", "cuda", "--sms", "132", "--resident", "3"],
            ["report", record],
            ["plot", record, "-o", str(tmp_path / "plots")],
            ["compare", record, record],
            ["run", str(root / "sweeps" / "seed-decode.toml"), "--plan"],
            ["report", record, "--format", "json"],
            ["tune", "--plan"],
            ["mix", "--plan"],
            ["gate", "--plan", "--backend", "cuda"],
            ["tune", "--from", str(sweep)],
            ["map", "show", tuned],
            ["map", "validate", tuned],
            ["map", "diff", tuned, tuned],
            ["map", "merge", tuned, tuned],
            ["map", "export", "ort", tuned],
            ["regret", record],
            ["rule", "score", record, "--format", "json"],
            ["rule", "show", "fa2", "--rows", "8", "--candidates", "2048", "--sms", "132", "--resident", "3"],
        )
    )
    modules, driver = probe(statement)
    assert modules & GPU == set()
    assert not driver


def cpu_seconds(environment: dict[str, str], *argv: str, tries: int = 5) -> float:
    """The least processor time of a few runs."""
    spent: list[float] = []
    for _ in range(tries):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *argv], env=environment, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(spent)


def test_starting_is_quick(environment_of_children: Any) -> None:
    environment = environment_of_children({"PYTHONDONTWRITEBYTECODE": None})
    bare = cpu_seconds(environment, "-c", "pass")
    assert cpu_seconds(environment, "-c", "import dsa_bench") - bare < 0.1
    assert cpu_seconds(environment, "-m", "dsa_bench", "--help") < 0.3
