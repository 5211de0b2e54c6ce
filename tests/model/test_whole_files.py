# SPDX-License-Identifier: MIT
"""Result files are whole, whatever they are written to."""

import os
import threading
from pathlib import Path

import pytest

from dsa_bench.model.errors import BadInput
from dsa_bench.model.files import refuse_unwritable, write_whole


def test_a_link_stays_a_link_and_what_it_names_is_written(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_whole(link, "new\n")
    assert link.is_symlink()
    assert target.read_text() == "new\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "target"]


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    """A device or pipe that is replaced by a file is lost to everyone else."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, "text\n")
    reader.join(timeout=10)
    assert read == ["text\n"]
    assert pipe.is_fifo()


def test_the_umask_decides_who_may_read(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_whole(tmp_path / "private", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("name", "said"), [("", "is a folder; name a file"), ("no/such", "does not exist")])
def test_a_place_that_takes_no_file_is_refused_before_anything_is_measured(
    tmp_path: Path, name: str, said: str
) -> None:
    with pytest.raises(BadInput, match=said):
        refuse_unwritable(tmp_path / name)


def test_names_that_pathlib_raises_on_are_one_line(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    for name in (loop, loop / "x", tmp_path / ("n" * 300)):
        with pytest.raises(BadInput, match=f"^-o {name}: "):
            refuse_unwritable(name)


def test_the_file_aside_is_short_however_long_the_name(tmp_path: Path) -> None:
    longest = tmp_path / ("n" * 255)
    refuse_unwritable(longest)
    write_whole(longest, "text\n")
    assert longest.read_text() == "text\n"
