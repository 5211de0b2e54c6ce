# SPDX-License-Identifier: MIT
"""`dsa-bench compare`: exit codes, formats, streams."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

Command = Callable[..., Any]
H200 = "results/nvidia-h200/seed-decode"


@pytest.fixture
def runs(maker: Any, tmp_path: Path) -> Callable[..., tuple[str, str]]:
    """Files of a base with 10 us and a head with other times; the names hold brackets."""

    def write(head_us: float | None, kernel: str = "previous") -> tuple[str, str]:
        paths: list[str] = []
        for name, time_us in (("base[h200].json", 10.0), ("head[h200].json", head_us)):
            run = type(maker)().header().check(kernel).rounds({kernel: [time_us] * 8, "control": [time_us] * 8}, kernel)
            paths.append(str(run.write(tmp_path / name)))
        return paths[0], paths[1]

    return write


@pytest.mark.parametrize(
    ("head_us", "code", "line"),
    [(10.0, 0, "same"), (9.0, 0, "1.11x faster"), (11.0, 1, "1.10x slower"), (None, 1, "invalid")],
)
def test_exit_codes(command: Command, runs: Any, head_us: float | None, code: int, line: str) -> None:
    base, head = runs(head_us)
    outcome = command("compare", base, head)
    assert outcome.code == code
    assert line in outcome.out
    said = [f"dsa-bench: error: {head} against {base}: 1 {'slower' if head_us else 'invalid'}"] if code else []
    assert outcome.err.splitlines() == said


@pytest.mark.parametrize(
    ("threshold", "code"), [("15%", 0), ("0.15", 0), ("5%", 1), ("0.05", 1), ("0", 1), ("0.5%", 1)]
)
def test_thresholds(command: Command, runs: Any, threshold: str, code: int) -> None:
    assert command("compare", *runs(11.0), "--threshold", threshold).code == code


@pytest.mark.parametrize("threshold", ["15", "1", "x", "-1%", "", "%", "1e999%", "nan"])
def test_a_threshold_that_could_mean_two_things_is_refused(command: Command, runs: Any, threshold: str) -> None:
    """E1, MinaProtocol/mina#19424: 15 and 0.15 cannot both be taken silently."""
    outcome = command("compare", *runs(11.0), "--threshold", threshold)
    assert f"--threshold: '{threshold}'" in outcome.error
    assert outcome.code == 2


def test_bracketed_names_are_whole(command: Command, runs: Any) -> None:
    """A8, agsaru/Repo2Readme#187."""
    base, head = runs(11.0, "Attn[splitk=16]")
    for format in ("table", "markdown", "json", "junit"):
        out = command("compare", base, head, "--format", format).out
        assert "Attn[splitk=16]" in out
        assert "head[h200].json" in out or format == "junit"


def test_bad_files_are_one_line(command: Command, runs: Any, maker: Any, tmp_path: Path) -> None:
    """A torn header, an empty run, a file that is none, a second header, bare NaN (E5, sharkdp/hyperfine#319)."""
    base, head = runs(10.0)
    text = Path(head).read_text()
    broken = tmp_path / "x.jsonl"
    for content, said in (
        (text[:50], "holds no whole header line"),
        (text.splitlines()[0] + "\n", "holds no cell"),
        ('{"records": []}\n', "has kind None"),
        (text + text, "is a second header"),
        (text.replace("10.0", "NaN"), "NaN is not a number that JSON has"),
        ("[/tmp/x] expected one of [0, 1, 2, 4]\n", "is not a line of JSON"),
    ):
        broken.write_text(content)
        for argv in ((base, str(broken)), (str(broken), head)):
            outcome = command("compare", *argv)
            assert f"{broken}:" in outcome.error
            assert said in outcome.error
            assert outcome.code == 2
    assert "[/tmp/y]" in command("compare", "[/tmp/y]", head).error


def test_a_torn_last_line_is_left_out(command: Command, runs: Any) -> None:
    base, head = runs(10.0)
    Path(head).write_text(Path(head).read_text()[:-40])
    outcome = command("compare", base, head)
    assert outcome.code == 0
    assert "same" in outcome.out


def test_junit_counts_its_failures_and_takes_any_text(command: Command, maker: Any, runs: Any, tmp_path: Path) -> None:
    base, _ = runs(10.0)
    control = '\x1b[31m \x00 \ud800 <&>" größer'
    failed = maker.header().check("previous", status="wrong_result", reason=control, rms_error=None)
    outcome = command("compare", base, str(failed.write(tmp_path / "failed.jsonl")), "--format", "junit")
    root = ElementTree.fromstring(outcome.out)
    (suite,) = root
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    (failure,) = suite.iter("failure")
    assert failure.get("type") == "failed"
    assert '\\x1b[31m \\x00 \\ud800 <&>" größer' in (failure.get("message") or "")
    assert outcome.code == 1


def test_the_document_says_what_the_gate_said(command: Command, runs: Any) -> None:
    document = json.loads(command("compare", *runs(11.0), "--format", "json").out)
    assert document["gate"] == {"passed": False, "reasons": ["1 slower"]}
    assert document["samples"] == "independent"
    assert document["rows"][0]["ratio"] == pytest.approx(1.1)


def test_an_ascii_stdout_changes_no_verdict(process: Any, maker: Any, runs: Any, tmp_path: Path) -> None:
    """A9, pydantic/pydantic-ai#7281."""
    base, _ = runs(10.0)
    maker.header().check("previous", status="wrong_result", reason="größer als 16 µs → ± [slug]", rms_error=None)
    head = str(maker.write(tmp_path / "h.jsonl"))
    for format in ("table", "junit"):
        ascii, utf8 = (
            process("compare", base, head, "--format", format, env={"PYTHONIOENCODING": name})
            for name in ("ascii", "utf-8")
        )
        assert (ascii.code, utf8.code) == (1, 1)
        assert len(ascii.out.splitlines()) == len(utf8.out.splitlines())
        assert "failed" in ascii.out


def test_homeless_and_without_a_driver(process: Any, runs: Any, tmp_path: Path) -> None:
    """F5, Aider-AI/aider#2865, and F1, NVIDIA/cudf#6602: reading two files creates nothing."""
    base, head = runs(10.0)
    before = sorted(tmp_path.rglob("*"))
    bare = {"HOME": None, "XDG_CACHE_HOME": "/proc/nowhere", "LANG": None, "CUDA_VISIBLE_DEVICES": ""}
    outcome = process("compare", base, head, env=bare)
    assert (outcome.code, outcome.err) == (0, "")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_committed_run_against_itself_is_the_same_and_quick(command: Command, root: Path) -> None:
    largest = max((root / "results").rglob("*.jsonl"), key=lambda path: path.stat().st_size)
    start = time.process_time()
    outcome = command("compare", str(largest), str(largest))
    assert time.process_time() - start < 5
    assert outcome.code == 0
    assert "slower" not in outcome.out
    assert command("compare", str(largest), str(largest)).out == outcome.out


def test_warm_against_cold_is_refused_naming_both(command: Command, root: Path) -> None:
    warm, cold = sorted(map(str, (root / H200).glob("*.jsonl")))
    outcome = command("compare", warm, cold)
    assert "l2: base warm, head cold; --allow-device-mismatch" in outcome.error
    assert outcome.code == 2
    allowed = command("compare", warm, cold, "--allow-device-mismatch")
    assert allowed.code == 1
    assert allowed.out.count("NOT ALIKE: l2: base warm, head cold") == 6
