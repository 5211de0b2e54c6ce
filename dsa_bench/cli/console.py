# SPDX-License-Identifier: MIT
"""The two streams: stdout carries the result and nothing else, stderr everything said on the way."""

import contextlib
import os
import shutil
import sys
from collections.abc import Generator
from typing import Any, TextIO

from dsa_bench.model.errors import CannotMeasure
from dsa_bench.model.text import printable

PROGRAM = "dsa-bench"


def prepare_streams() -> None:
    """Make both streams total: characters that they cannot encode are escaped, and a closed one swallows."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller's shell
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - lives as long as the process
        reconfigure: Any = getattr(getattr(sys, name), "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def emit(text: str) -> None:
    """Write the result, ending in one newline; no result, no newline. A reader that closes early is no failure.

    Raises CannotMeasure if stdout cannot take it.
    """
    if not text:
        return
    try:
        sys.stdout.write(text.rstrip("\n") + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
    except OSError as error:
        _discard_stdout()
        raise CannotMeasure(f"stdout: cannot be written ({error.strerror}); send the result elsewhere") from error


def _discard_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush has nothing to complain about."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def note(text: str) -> None:
    """One line to the user on stderr. Control characters of what it quotes are escaped."""
    _say(f"{PROGRAM}: {printable(' '.join(text.split()))}")


def lines_to_user(lines: list[str]) -> None:
    """Several lines to the user on stderr, with control characters escaped."""
    _say("\n".join(map(printable, lines)))


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def only_the_result_on_stdout() -> Generator[None]:
    """While measuring, whatever a library prints goes to stderr."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def terminal_width(stream: TextIO) -> int | None:
    """Columns of a terminal; None where the stream is none."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def wants_color(stream: TextIO) -> bool:
    """Colour on a terminal unless NO_COLOR is set or the terminal is dumb; FORCE_COLOR asks for it anywhere."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")
