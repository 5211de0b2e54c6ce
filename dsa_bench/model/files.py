# SPDX-License-Identifier: MIT
"""Result files: written aside and renamed, so that a reader never sees half of one."""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from dsa_bench.model.errors import BadInput, CannotMeasure
from dsa_bench.model.record import SCHEMA

LONGEST_HEADER = 1 << 20
"""Bytes of a record's first line that are looked at."""


def refuse_unwritable(path: Path) -> None:
    """Raises BadInput if `write_whole` could not even begin, before anything is measured for it.

    A record is not written over: what was measured is nowhere else.
    """
    if os.path.isdir(path):  # os.path answers where pathlib raises: names too long, loops of links, closed folders
        raise BadInput(f"-o {path}: is a folder; name a file")
    try:
        target = os.path.realpath(path)
        held = _is_record(target)
    except OSError as error:
        raise BadInput(f"-o {path}: cannot be written ({error.strerror}); name another file") from error
    if held:
        raise BadInput(f"-o {path}: holds a record, which is not written over; name another file")
    folder = os.path.dirname(target)
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        said = "cannot be written" if os.path.isdir(folder) else "does not exist"
        raise BadInput(f"-o {path}: its folder {folder} {said}")


def _is_record(path: str) -> bool:
    """Whether a regular file begins with a record's header. Raises OSError for a name that cannot be looked up."""
    with suppress(FileNotFoundError):
        if stat.S_ISREG(os.stat(path).st_mode) and os.access(path, os.R_OK):
            with open(path, "rb") as file:
                return f'"schema":"{SCHEMA}"'.encode() in file.readline(LONGEST_HEADER)
    return False


def write_whole(path: Path, content: str | bytes) -> None:
    """Write aside and rename, so that `path` holds the old or the new content and never a part of it.

    A link stays a link; a device or pipe is written to directly. Raises BadInput if the folder takes no file,
    CannotMeasure if it is full.
    """
    refuse_unwritable(path)
    target = Path(os.path.realpath(path))
    data = content.encode() if isinstance(content, str) else content
    if target.exists() and not stat.S_ISREG(target.stat().st_mode):
        _write_through(path, target, data)
        return
    try:
        aside = target.with_name(f".dsa-bench.{os.getpid()}.{secrets.token_hex(4)}")  # short, however long the target's
        try:
            with aside.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(target)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise CannotMeasure(
            f"-o {path}: writing failed ({error.strerror}); what was there before is untouched"
        ) from error


def _write_through(path: Path, target: Path, data: bytes) -> None:
    try:
        target.write_bytes(data)
    except OSError as error:
        raise CannotMeasure(f"-o {path}: writing failed ({error.strerror}); name another file") from error
