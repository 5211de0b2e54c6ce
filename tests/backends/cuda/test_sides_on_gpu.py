# SPDX-License-Identifier: MIT
"""Two folders of kernels on the GPU, in the same rounds."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dsa_bench.backends.cuda.probe import missing_gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timing,
    pytest.mark.skipif(missing_gpu() is not None, reason=str(missing_gpu())),
]


@pytest.mark.parametrize(("op", "rows"), [("decode", "8"), ("prefill", "128")])
@pytest.mark.parametrize("timer", ["cupti", "events"])
def test_a_tree_against_its_copy_is_the_same(
    command: Any, root: Path, tmp_path: Path, op: str, rows: str, timer: str
) -> None:
    copy = shutil.copytree(root / "kernels", tmp_path / "kernels")
    outcome = command(
        "ab", str(root), str(copy), "--op", op, "--rows", rows, "--timer", timer, "--rounds", "16", "--format", "json",
        "--threshold", "2%",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    document = json.loads(outcome.out)
    assert [(row["kernel"], row["status"]) for row in document["rows"]] == [("previous", "same"), ("int8-tc", "same")]
    assert all(row["same_code"] for row in document["rows"])


def test_a_slower_copy_is_slower(command: Any, root: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(root / "kernels", tmp_path / "kernels")
    source = copy / "dsa" / "merge.cu"
    text = source.read_text()
    body = "  using namespace merge;\n"
    assert text.count(body) == 1
    source.write_text(text.replace(body, f"{body}  __nanosleep(20000);\n"))
    outcome = command("ab", str(root), str(copy), "--rows", "8", "--kernels", "int8-tc", "--format", "json")
    assert outcome.code == 0, outcome.err
    (row,) = json.loads(outcome.out)["rows"]
    assert (row["status"], row["same_code"]) == ("slower", False)
