# SPDX-License-Identifier: MIT
"""Result files: written aside and renamed, so that a reader never sees half of one."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from dsa_bench.model.errors import BadInput


def write_whole(path: Path, text: str) -> None:
    """Write a text file, ending in one newline, or leave what was there. Raises BadInput naming the file."""
    write_bytes(path, (text.rstrip("\n") + "\n").encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file, or leave what was there. Raises BadInput naming the file."""
    aside: str | None = None
    try:
        handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), 0o644)
        os.replace(aside, path)
    except OSError as error:
        if aside is not None:
            with suppress(OSError):
                os.unlink(aside)
        raise BadInput(f"-o {path}: cannot be written ({error.strerror}); name another file") from error
