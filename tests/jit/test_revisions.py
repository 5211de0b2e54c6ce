# SPDX-License-Identifier: MIT
"""Folders of kernels by the names that a user gives them."""

import shutil
import subprocess
from pathlib import Path

import pytest

from dsa_bench.jit.revisions import kernel_trees
from dsa_bench.model.errors import BadInput

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(repository: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=x", "-c", "user.email=x@y")
    done = subprocess.run(["git", *identity, *arguments], cwd=repository, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two commits of one kernel, then a change that is not committed; the current folder is a subfolder."""
    folder = tmp_path / "repository"
    (folder / "kernels" / "dsa").mkdir(parents=True)
    (folder / "empty").mkdir()
    git(folder, "init", "-q", "-b", "main")
    for text in ("one", "two"):
        (folder / "kernels" / "dsa" / "k.cu").write_text(text)
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", text)
    (folder / "kernels" / "dsa" / "k.cu").write_text("dirty")
    monkeypatch.chdir(folder / "empty")
    return folder


def text(folder: Path) -> str:
    return (folder / "dsa" / "k.cu").read_text()


def test_revisions_and_a_dirty_tree_stand_side_by_side(repository: Path) -> None:
    with kernel_trees("HEAD~1", "main", "..", "../kernels") as trees:
        assert [text(tree.folder) for tree in trees] == ["one", "two", "dirty", "dirty"]
        assert [tree.name for tree in trees] == ["HEAD~1", "main", "..", "../kernels"]
        assert [tree.origin for tree in trees] == [
            git(repository, "rev-parse", "HEAD~1"), git(repository, "rev-parse", "HEAD"), "folder", "folder",
        ]  # fmt: skip
        scratch = trees[0].folder
    assert not scratch.exists()
    assert git(repository, "status", "--porcelain") == "M kernels/dsa/k.cu", "the tree is left as it was"


@pytest.mark.parametrize("name", ["nope", "", "--help", "HEAD^{tree}", "HEAD~9", "[/tmp/x]"])
def test_what_is_neither_is_refused_by_its_name(repository: Path, name: str) -> None:
    with pytest.raises(BadInput) as refused, kernel_trees("HEAD", name):
        pass
    assert str(refused.value).startswith(f"{name!r}: is neither a folder nor a revision with a kernels/ folder")


def test_trees_without_kernels_are_refused(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"'\.': holds no kernel"), kernel_trees("."):
        pass
    git(repository, "rm", "-qrf", "kernels")
    git(repository, "commit", "-qm", "none")
    with pytest.raises(BadInput, match="'HEAD': is neither a folder nor a revision with"), kernel_trees("HEAD"):
        pass


def test_a_revision_outside_a_repository_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(BadInput, match="not a git repository"), kernel_trees("HEAD"):
        pass


def test_without_git_a_folder_still_works(repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with kernel_trees("..") as (tree,):
        assert text(tree.folder) == "dirty"
    with pytest.raises(BadInput, match="git is not installed"), kernel_trees("HEAD"):
        pass
