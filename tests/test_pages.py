# SPDX-License-Identifier: MIT
"""The documentation leads where it says, and leaves no command out."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dsa_bench.cli.main import app
from dsa_bench.oracle.cases.catalog import DECODE_CASES, PREFILL_CASES
from dsa_bench.report.plots.names import KINDS

CONSOLE = re.compile(
    r"^\$ dsa-bench ((?:regret results/|report results|rule show)[^|\n]*)(?:\| (.*))?\n((?:(?!\$ |```).*\n)+)", re.M
)
"""Shown commands that measure nothing and read what is in the repository: arguments, filter, output."""
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]+)?\)")


def pages(root: Path) -> list[Path]:
    return [*sorted((root / "docs").rglob("*.md")), *sorted(root.glob("*.md"))]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_files_lead_somewhere(root: Path) -> None:
    lost = []
    for page in pages(root):
        for target, anchor in LINK.findall(page.read_text()):
            if "://" in target:
                continue
            path = page.parent / target
            if not path.exists() or (anchor and anchor not in anchors(path)):
                lost.append(f"{page.relative_to(root)}: {target}{anchor}")
    assert lost == []


def test_every_command_has_its_page_and_the_guide_names_it(root: Path) -> None:
    commands = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    commands += [str(group.name) for group in app.registered_groups]
    guide = (root / "docs" / "guide.md").read_text()
    for name in commands:
        page = root / "docs" / "commands" / f"{name}.md"
        assert page.is_file(), name
        assert page.read_text().startswith(f"# {name}\n")
        assert f"[{name}](commands/{name}.md)" in guide


def test_every_kind_of_picture_is_explained(root: Path) -> None:
    page = (root / "docs" / "reading-plots.md").read_text()
    assert [name for name in KINDS if f"\n## {name}\n" not in page] == []


def test_readme_counts_the_cases(root: Path) -> None:
    cases = f"on {len(DECODE_CASES)} corner cases of decode and {len(PREFILL_CASES)} of prefill against FP64"
    assert cases in (root / "README.md").read_text()


def test_decisions_are_numbered_once(root: Path) -> None:
    numbers = [path.name[:4] for path in sorted((root / "docs" / "decisions").glob("*.md"))]
    assert len(numbers) == len(set(numbers))


def test_shown_output_is_what_the_command_prints(command: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    shown = [found for page in pages(root) for found in CONSOLE.findall(page.read_text())]
    assert {arguments.split()[0] for arguments, _, _ in shown} == {"regret", "report", "rule"}
    for arguments, pipe, output in shown:
        printed = command(*arguments.split()).out
        assert output == (subprocess.check_output(pipe, shell=True, input=printed, text=True) if pipe else printed)
