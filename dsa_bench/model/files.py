# SPDX-License-Identifier: MIT
"""Result files: written aside and renamed, so that a reader never sees half of one."""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from dsa_bench.model.errors import BadInput, CannotMeasure


def refuse_unwritable(path: Path) -> None:
    """Raises BadInput if `write_whole` could not even begin, before anything is measured for it."""
    if os.path.isdir(path):  # os.path answers where pathlib raises: names too long, loops of links, closed folders
        raise BadInput(f"-o {path}: is a folder; name a file")
    try:
        target = os.path.realpath(path)
        with suppress(FileNotFoundError):
            os.stat(target)
    except OSError as error:
        raise BadInput(f"-o {path}: cannot be written ({error.strerror}); name another file") from error
    folder = os.path.dirname(target)
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        said = "cannot be written" if os.path.isdir(folder) else "does not exist"
        raise BadInput(f"-o {path}: its folder {folder} {said}")


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
