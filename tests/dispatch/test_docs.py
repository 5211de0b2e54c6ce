# SPDX-License-Identifier: MIT
"""docs/dispatcher.md: its examples run, and its tables are the program's."""

import re
from pathlib import Path

import pytest

from dsa_bench.dispatch.gates import GATES
from dsa_bench.dispatch.options import OPTIONS


def examples(root: Path) -> dict[str, str]:
    """The Python examples by the first library that they import."""
    blocks = re.findall(r"```python\n(.*?)```", (root / "docs/dispatcher.md").read_text(), re.DOTALL)
    return {block.split()[1]: block for block in blocks}


def test_the_numpy_example_runs(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(examples(root)["ml_dtypes"], {})
    assert capsys.readouterr().out.startswith("int8-tc decode, ")


def test_the_gpu_examples_are_python(root: Path) -> None:
    for library in ("torch", "cupy"):
        compile(examples(root)[library], library, "exec")


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["torch", "cupy"])
@pytest.mark.filterwarnings("ignore::dsa_bench.dispatch.tuned.MapWarning")
def test_the_gpu_examples_run(library: str, root: Path) -> None:
    from dsa_bench.backends.cuda.probe import missing_gpu

    if (missing := missing_gpu()) is not None:
        pytest.skip(missing)
    pytest.importorskip(library)
    exec(examples(root)[library], {})


def test_every_option_and_gate_is_described(root: Path) -> None:
    text = (root / "docs/dispatcher.md").read_text()
    for option in OPTIONS.values():
        assert f"| `{option.name}` | `{option.variable}` |" in text
        assert f"| `{option.default}` |" in text
    names = {rule.name for rules in GATES.values() for rule in rules}
    for name in names - {option.name for option in OPTIONS.values()}:
        described = "query heads per KV head" if name == "group" else name.removesuffix(" alignment")
        assert re.search(rf"\b{re.escape(described)}\b", text), name
