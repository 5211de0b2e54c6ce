# SPDX-License-Identifier: MIT
"""Result files: written aside and renamed, so that a reader never sees half of one."""

import os
import secrets
import stat
from pathlib import Path

from dsa_bench.model.errors import BadInput, CannotMeasure


def refuse_unwritable(path: Path) -> None:
    """Raises BadInput if `write_whole` could not even begin, before anything is measured for it."""
    folder = path.resolve().parent
    if path.is_dir():
        raise BadInput(f"-o {path}: is a folder; name a file")
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise BadInput(f"-o {path}: its folder {folder} {'cannot be written' if folder.is_dir() else 'does not exist'}")


def write_whole(path: Path, text: str) -> None:
    """Write aside and rename, so that `path` holds the old or the new text and never a part of it.

    A link stays a link; a device or pipe is written to directly. Raises BadInput if the folder takes no file,
    CannotMeasure if it is full.
    """
    refuse_unwritable(path)
    target = path.resolve()
    data = text.encode()
    try:
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            target.write_bytes(data)
            return
        aside = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}")
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
