# SPDX-License-Identifier: MIT
"""stdout carries the result alone, stderr the rest; awkward streams and folders change no verdict."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsa_bench.model.run import complete_rounds, read_run

Process = Callable[..., Any]
SMALL = ("--rows", "1", "--context", "128", "--candidates", "64", "--rounds", "2", "--backend", "cpu")
NOISY_SITE = """
import logging, warnings
import dsa_bench.data.synthetic as synthetic
original = synthetic.sparse_inputs
def noisy(*arguments):
    print("banner of a library")
    logging.getLogger("library").warning("a warning of a library")
    warnings.warn("a deprecation of a library", DeprecationWarning)
    return original(*arguments)
synthetic.sparse_inputs = noisy
from dsa_bench.cli.main import main
main()
"""


@pytest.fixture
def recorded(two_cells: Any, tmp_path: Path) -> Path:
    return two_cells.write(tmp_path / "run[h200].jsonl")


def strict(text: str) -> Any:
    def refuse(constant: str) -> float:
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


def test_machine_formats_are_the_document_alone(environment_of_children: Any, tmp_path: Path) -> None:
    """A6, ggml-org/llama.cpp#15554: with every warning on, and a library that prints and logs while measuring."""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", NOISY_SITE, "decode", *SMALL, "--format", "json"],
        env=environment_of_children({"FORCE_COLOR": "1"}), cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout[0] == "{"
    assert done.stdout.endswith("}\n")
    assert len(strict(done.stdout)["rows"]) == 2
    for said in ("banner of a library", "a warning of a library", "a deprecation of a library", "cell 1 of 1"):
        assert said in done.stderr


def test_a_closed_stderr_is_no_failure(environment_of_children: Any, tmp_path: Path) -> None:
    """A6, ggml-org/llama.cpp#15554."""
    done = subprocess.run(
        [sys.executable, "-c", "import os,sys; os.close(2); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])",
         "-m", "dsa_bench", "decode", *SMALL, "--format", "json"],
        env=environment_of_children(), cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    assert len(strict(done.stdout)["rows"]) == 2


@pytest.mark.parametrize("format", ["json", "jsonl", "csv", "markdown"])
def test_no_colour_in_machine_formats(
    command: Any, recorded: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    plain = command("report", str(recorded), "--format", format)
    monkeypatch.setenv("FORCE_COLOR", "1")
    forced = command("report", str(recorded), "--format", format)
    assert forced == plain
    assert "\x1b" not in forced.out
    assert (forced.code, forced.err) == (0, "")
    assert "\x1b[" in command("report", str(recorded)).out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in command("report", str(recorded)).out


def test_every_json_parses_with_nan_refused(command: Any, two_cells: Any, tmp_path: Path) -> None:
    """E5, sharkdp/hyperfine#642: a text that contains the word is untouched."""
    run = two_cells.check("previous", 64, status="wrong_result", reason="out is NaN, not Infinity").write(
        tmp_path / "r"
    )
    document = strict(command("report", str(run), "--format", "json").out)
    assert document["rows"][-1]["reason"] == "out is NaN, not Infinity"
    for line in command("report", str(run), "--format", "jsonl").out.splitlines():
        strict(line)
    strict(command("decode", "--plan").out)
    strict(command("env", "--format", "json").out)


def test_a_report_of_nothing_is_no_line(command: Any, maker: Any, tmp_path: Path) -> None:
    run = str(maker.header().write(tmp_path / "r"))
    for format in ("table", "jsonl", "csv"):
        assert command("report", run, "--format", format).out == ""


def test_an_ascii_stdout_changes_no_verdict(process: Process, maker: Any, tmp_path: Path) -> None:
    """A9, pydantic/pydantic-ai#7281: characters are escaped, every row is there."""
    maker.header().check(
        "previous", status="compile_failed", reason="größer als 16 µs → ± [slug] \ud800", rms_error=None
    )
    run = maker.check("int8-tc/splits=1").write(tmp_path / "r.jsonl")
    for encoding in ("ascii", "utf-8"):
        outcome = process("report", str(run), env={"PYTHONIOENCODING": encoding})
        assert (outcome.code, outcome.err) == (0, "")
        assert "int8-tc" in outcome.out
        assert ("gr\\xf6\\xdfer als 16 \\xb5s" if encoding == "ascii" else "größer als 16 µs → ±") in outcome.out


def test_readers_that_close_early(environment_of_children: Any, recorded: Path, maker: Any, tmp_path: Path) -> None:
    """A9, pallets/click#625: `| head -1` of something long, unbuffered, and a reader that takes nothing at all."""
    maker.header()
    for rows in range(1, 400):
        maker.check("previous", rows)
    big = str(maker.write(tmp_path / "big.jsonl"))
    for argv, reader in (
        (["report", big], "head -1"),
        (["report", str(recorded)], "true"),
        (["decode", "--help"], "true"),
    ):
        done = subprocess.run(
            ["bash", "-c", f'"$0" -m dsa_bench "$@" | {reader}; exit ${{PIPESTATUS[0]}}', sys.executable, *argv],
            env=environment_of_children({"PYTHONUNBUFFERED": "1"}), cwd=tmp_path, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), argv


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_stdout_that_is_closed_or_full(environment_of_children: Any, recorded: Path) -> None:
    def report(redirect: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", f'"$0" -m dsa_bench report "$1" {redirect}', sys.executable, str(recorded)],
            env=environment_of_children(), capture_output=True, text=True, check=False,
        )  # fmt: skip

    closed, full = report(">&-"), report("> /dev/full")
    assert (closed.returncode, closed.stderr) == (0, "")
    assert full.returncode == 3
    assert full.stderr.splitlines() == [
        "dsa-bench: error: stdout: cannot be written (No space left on device); send the result elsewhere"
    ]


def test_piped_names_are_whole(process: Process, maker: Any, tmp_path: Path) -> None:
    """A9, Textualize/rich#68: no cut at 80 columns; A8, agsaru/Repo2Readme#187: nor at brackets."""
    kernel = "Attn[splitk=16]" + "x" * 100
    run = maker.header().check(kernel).write(tmp_path / "base[h200].jsonl")
    outcome = process("report", str(run), env={"COLUMNS": "40"})
    assert kernel in outcome.out
    assert outcome.code == 0


def interrupted(argv: list[str], environment: dict[str, str], record: Path) -> tuple[int, str, str]:
    """Ctrl-C once the record holds a few visits."""
    child = subprocess.Popen(
        [sys.executable, "-m", "dsa_bench", *argv, "--record", str(record)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        while child.poll() is None and not (record.exists() and record.read_text().count('"visit"') >= 4):
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=30)
    finally:
        child.kill()
    return child.returncode, out, err


def test_ctrl_c_keeps_what_was_measured(environment_of_children: Any, process: Process, tmp_path: Path) -> None:
    """C10, ROCm/aiter#5263: exit 130, every finished visit on disk, --resume measures only what is missing."""
    record = tmp_path / "new" / "r.jsonl"
    argv = ["decode", "--rows", "1", "2", "--context", "128", "--candidates", "64", "--rounds", "8", "--backend", "cpu"]
    code, out, err = interrupted([*argv, "--format", "json"], environment_of_children(), record)
    assert code == 130
    assert [row["rounds"] for row in (strict(out)["rows"] if out else [])] in ([], [8, 8])  # no cell that is not whole
    assert f"what was measured is in {record}" in err
    assert "Traceback" not in err
    kept = read_run(record)
    assert 4 <= len(kept.visits) < 48

    finished = process(*argv, "--format", "json", "--record", str(record), "--resume")
    assert finished.code == 0
    assert [row["rounds"] for row in strict(finished.out)["rows"]] == [8] * 4
    run = read_run(record)
    assert run.visits[: len(kept.visits)] == kept.visits
    assert sum(1 for _ in complete_rounds(run)) == 16


FULL_DISK = """
import resource, signal, sys
from dsa_bench.cli.main import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
main()
"""


def test_a_full_disk_is_one_line_and_can_be_resumed(
    environment_of_children: Any, process: Process, tmp_path: Path
) -> None:
    """C10, ROCm/aiter#5263: the limit falls inside a line; what is whole before it is a run."""
    argv = ["decode", "--rows", "1", "--context", "128", "--candidates", "64", "--rounds", "6", "--backend", "cpu",
            "--record", "r.jsonl", "--format", "json"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, *argv],
        env=environment_of_children(), cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert strict(done.stdout)["rows"][0]["rounds"] < 6, "what there is, as one whole document"
    assert done.stderr.splitlines()[-1].startswith("dsa-bench: error: --record r.jsonl: writing failed (")
    assert "Traceback" not in done.stderr
    assert read_run(tmp_path / "r.jsonl").visits
    resumed = process(*argv, "--resume")
    assert resumed.code == 0
    assert strict(resumed.out)["rows"][0]["rounds"] == 6


def test_a_machine_without_a_gpu(process: Process, tmp_path: Path) -> None:
    """F1, NVIDIA/cudf#6602: no driver, or every device hidden, found out by the program itself."""
    outcome = process("decode", "--rows", "1", "--backend", "cuda", "--record", "r.jsonl")
    assert outcome.error.startswith("dsa-bench: error: --backend cuda: ")
    assert "driver" in outcome.error
    assert outcome.code == 3
    assert not list(tmp_path.glob("r.jsonl"))


def test_homeless(process: Process, recorded: Path, tmp_path: Path) -> None:
    """F5, Aider-AI/aider#2865: no home, or one that does not exist, and nothing is created for reading or planning."""
    before = sorted(tmp_path.rglob("*"))
    bare = {"HOME": None, "XDG_CACHE_HOME": "/proc/nowhere", "LANG": None, "PATH": os.defpath}
    for argv, env in (
        (("report", str(recorded)), bare),
        (("decode", "--plan"), {"HOME": "/nonexistent", "XDG_CACHE_HOME": None}),
        (("env",), bare),
    ):
        outcome = process(*argv, env=env)
        assert (outcome.code, outcome.err) == (0, ""), argv
        assert outcome.out
    assert sorted(tmp_path.rglob("*")) == before


def test_on_a_terminal_a_bar_follows_the_run_and_leaves_no_trace(environment_of_children: Any, tmp_path: Path) -> None:
    """The main job as it is typed: stderr and stdout are a terminal of 80 columns."""
    argv = [sys.executable, "-m", "dsa_bench", "decode", "--rows", "1", "--context", "128", "--candidates", "64"]
    for budget in (["--rounds", "6"], ["--budget", "0.2"]):
        leader, follower = pty.openpty()
        process = subprocess.Popen(
            [*argv, *budget, "--backend", "cpu"], env=environment_of_children({"COLUMNS": "80", "TERM": "xterm"}),
            cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=follower, stderr=follower,
        )  # fmt: skip
        os.close(follower)
        said = b""
        with contextlib.suppress(OSError):  # the terminal is gone with its last user
            while chunk := os.read(leader, 4096):
                said += chunk
        os.close(leader)
        assert process.wait() == 0, said.decode()
        assert b"Traceback" not in said
        assert b"rows 1, context 128" in said
        assert b"\x1b[" in said, "colour"


def test_help_to_a_full_disk_is_one_line(environment_of_children: Any, tmp_path: Path) -> None:
    for argv in (["--help"], ["decode", "--help"], ["--version"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "dsa_bench", *argv], env=environment_of_children(), cwd=tmp_path, stdout=full,
                stderr=subprocess.PIPE, text=True, check=False,
            )  # fmt: skip
        assert done.returncode == 3, done.stderr
        assert done.stderr.startswith("dsa-bench: error: stdout: cannot be written")
        assert len(done.stderr.splitlines()) == 1
