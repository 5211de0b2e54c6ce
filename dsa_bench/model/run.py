# SPDX-License-Identifier: MIT
"""A run on disk: JSON Lines, append-only, a header first."""

import gc
import json
import os
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO, cast

try:
    import fcntl
except ImportError:  # not a POSIX system: two writers of one record are then the user's to avoid
    fcntl = None

from dsa_bench.model.cell_key import is_cell_key
from dsa_bench.model.documents import COUNT_KEY
from dsa_bench.model.errors import BadInput, CannotMeasure
from dsa_bench.model.record import SCHEMA, SCHEMA_VERSION, Check, Header, Line, Visit, line_content
from dsa_bench.model.schema import misfitting_field
from dsa_bench.model.text import quoted

SHORTEST_US, LONGEST_US = 1e-9, 1e15
"""A femtosecond and thirty years: no visit lies outside, and ratios and sums of such times are finite and not 0."""
LARGEST_RMS = 1e300
LARGEST_FACT = 2.0**63


@dataclass(frozen=True, slots=True)
class Run:
    """A header with what was measured under it.

    whole_bytes  size of the file's whole lines; less than the file where a killed run left its last line torn
    """

    header: Header
    checks: list[Check] = field(default_factory=list[Check])
    visits: list[Visit] = field(default_factory=list[Visit])
    whole_bytes: int = 0

    def add(self, line: Check | Visit) -> None:
        if isinstance(line, Check):
            self.checks.append(line)
        else:
            self.visits.append(line)

    def of_cells(self, cells: Collection[str]) -> "Run":
        """The same run with these cells alone."""
        checks = [check for check in self.checks if check.cell in cells]
        return Run(self.header, checks, [visit for visit in self.visits if visit.cell in cells])


def read_run(path: Path) -> Run:
    """Read a recorded run. A torn last line is left out; anything else that is not a line of the schema is BadInput.

    Raises BadInput naming the file and the line.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); name a file that `--record` wrote") from error
    with _collector_paused():
        return _read_lines(path, data)


@contextmanager
def _collector_paused() -> Generator[None]:
    """A large run is a million live objects and no garbage: collecting while it is read doubles the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _read_lines(path: Path, data: bytes) -> Run:
    whole_bytes = data.rfind(b"\n") + 1
    contents = _decode(path, data[:whole_bytes].splitlines())
    if not contents:
        raise BadInput(f"{path}: holds no whole header line, so it is not a run of dsa-bench; name another file")
    header = _line(contents[0], f"{path}:1")
    if not isinstance(header, Header):
        raise BadInput(f"{path}:1: must be the header of a run")
    run = Run(header, whole_bytes=whole_bytes)
    for number, content in enumerate(contents[1:], 2):
        line = _line(content, f"{path}:{number}")
        if isinstance(line, Header):
            raise BadInput(f"{path}:{number}: is a second header")
        run.add(line)
    return run


def _decode(path: Path, lines: list[bytes]) -> list[Any]:
    """All lines in one call, which is quick; line by line only to say which one is damaged."""
    try:
        contents = _DECODER.decode((b"[" + b",".join(lines) + b"]").decode())
        if len(contents) == len(lines):
            return contents
    except (ValueError, RecursionError):
        pass
    return [_decode_line(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]


def _decode_line(line: bytes, place: str) -> Any:
    try:
        return _DECODER.decode(line.decode())
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{place}: is not a line of JSON ({error})") from error


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number that JSON has")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_CLASSES: dict[str, type[Header] | type[Check] | type[Visit]] = {"header": Header, "check": Check, "visit": Visit}
_SEQUENCE = {Header: "argv", Check: "requested", Visit: "requested"}
"""The field of each line that JSON holds as a list and the dataclass as a tuple; a check's rules are another."""


def _line(content: Any, place: str) -> Line:
    if not isinstance(content, dict):
        raise BadInput(f"{place}: must be a JSON object")
    fields = cast("dict[str, Any]", content)
    cls = _CLASSES.get(str(fields.get("kind")))
    if cls is None:
        raise BadInput(f"{place}: has kind {quoted(fields.get('kind'))}, not header, check or visit")
    if cls is Header:
        for name, expected in (("schema", SCHEMA), ("schema_version", SCHEMA_VERSION)):
            if fields.get(name) != expected:
                raise BadInput(f"{place}: has {name} {quoted(fields.get(name))}; this dsa-bench reads {expected!r}")
    misfit = misfitting_field(cls, fields)
    if misfit is not None:
        raise BadInput(f"{place}: {misfit}; docs/schemas/record.schema.json says what a line holds")
    fields[_SEQUENCE[cls]] = tuple(fields[_SEQUENCE[cls]])
    if cls is Visit:
        visit = Visit._make(map(fields.__getitem__, Visit._fields))  # a fifth of the time that keywords take
        _validate_times(visit, place)
        return visit
    if "rules" in fields:
        fields["rules"] = tuple(fields["rules"])
    line = cast("Callable[..., Header | Check]", cls)(**fields)
    if isinstance(line, Check):
        _validate_check(line, place)
    else:
        _validate_clusters(line.device.get("clusters"), place)
    return line


def _validate_clusters(clusters: Any, place: str) -> None:
    if clusters is not None and not _are_counts(clusters):
        raise BadInput(f"{place}: device.clusters is {quoted(clusters)}, which are no counts by size; record it again")


def _are_counts(clusters: Any) -> bool:
    if not isinstance(clusters, dict):
        return False
    counts = cast("dict[str, Any]", clusters).items()
    return all(COUNT_KEY.fullmatch(size) and type(count) is int and count >= 0 for size, count in counts)


def _validate_check(check: Check, place: str) -> None:
    if not is_cell_key(check.cell):
        raise BadInput(f"{place}: cell {check.cell!r} does not name a shape")
    if check.variant != check.kernel and not check.variant.startswith(f"{check.kernel}/"):
        raise BadInput(f"{place}: variant {quoted(check.variant)} is none of kernel {quoted(check.kernel)}")
    if min(check.splits, check.tiles_per_split, check.ctas) < 0:
        raise BadInput(f"{place}: splits, tiles_per_split and ctas count something and are not negative")
    if check.gathered_bytes is not None and not 0 <= check.gathered_bytes < 2**63:
        raise BadInput(f"{place}: gathered_bytes is a number of bytes or null, not {check.gathered_bytes!r:.40}")
    for name, fact in check.facts.items():
        if not 0 <= fact < LARGEST_FACT:
            raise BadInput(f"{place}: facts.{name} is a number of up to {LARGEST_FACT:g}, not {fact!r:.40}")
    for error in (check.rms_error, check.rounding_floor):
        if error is not None and not 0 <= error <= LARGEST_RMS:
            raise BadInput(
                f"{place}: an RMS error is a finite number of up to {LARGEST_RMS:g} or null, not {error!r:.40}"
            )


def _validate_times(visit: Visit, place: str) -> None:
    if visit.round < 0 or visit.attempt < 0 or visit.place < 0 or visit.launches < 0 or visit.splits < 0:
        raise BadInput(f"{place}: round, attempt, place, launches and splits count something and are not negative")
    for time_us in (visit.attention_us, visit.call_us):
        if visit.status == "ok":
            if time_us is None or not SHORTEST_US <= time_us <= LONGEST_US:
                said = f"{time_us!r:.40}"
                raise BadInput(
                    f"{place}: a visit with status ok needs times of {SHORTEST_US:g} to {LONGEST_US:g} us, not {said}"
                )
        elif time_us is not None:
            raise BadInput(f"{place}: a visit with status {visit.status} has no time, not {time_us!r}")


class RunWriter:
    """Appends lines, each whole and flushed, so that an interrupt keeps every one that was written.

    Raises BadInput if the file exists already (new runs) or cannot be opened, CannotMeasure if a write fails later.
    """

    def __init__(self, path: Path, resume: Run | None = None) -> None:
        self.path = path
        self._file = self._open(resume)

    def _open(self, resume: Run | None) -> TextIO:
        try:
            if resume is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            elif not os.path.isfile(self.path):
                raise BadInput(f"--record {self.path}: is no regular file; name one")
            file = self.path.open("x" if resume is None and not self._is_reserved() else "a", encoding="utf-8")
            self._claim(file, resume)
            return file
        except OSError as error:
            if os.path.isdir(self.path):
                raise BadInput(f"--record {self.path}: is a folder; name a file") from error
            if isinstance(error, FileExistsError) and os.path.exists(self.path):
                raise BadInput(f"--record {self.path}: exists; add --resume to go on, or name another file") from error
            raise BadInput(f"--record {self.path}: cannot be written ({error.strerror}); name another file") from error

    def _is_reserved(self) -> bool:
        """An empty file holds a name for a run that is to begin."""
        return os.path.isfile(self.path) and self.path.stat().st_size == 0

    def _claim(self, file: TextIO, resume: Run | None) -> None:
        """Keep other processes out until this one closes the file, and cut off a torn last line."""
        busy = BadInput(f"--record {self.path}: another process is writing it; wait for it, or name another file")
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise busy from error
        if resume is None and not self._is_reserved():  # another process was first, and is done
            file.close()
            raise busy
        if resume is not None:
            if b"\n" in self.path.read_bytes()[resume.whole_bytes :]:  # written since it was read
                file.close()
                raise busy
            os.truncate(self.path, resume.whole_bytes)

    def append(self, line: Line) -> None:
        try:
            self._file.write(json.dumps(line_content(line), allow_nan=False, separators=(",", ":")) + "\n")
            self._file.flush()
        except OSError as error:
            raise CannotMeasure(
                f"--record {self.path}: writing failed ({error.strerror}); free space, then --resume"
            ) from error

    def __enter__(self) -> "RunWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # every line was flushed; what is left could not be written before either
            self._file.close()


def complete_rounds(run: Run) -> Iterator[tuple[str, int, list[Visit]]]:
    """(cell, round, visits) of each round's last attempt, in the order taken; rounds that were cut short are left out.

    A round is complete when it has a visit of every variant that passed its cell's check, and the control's second one.
    """
    passed: dict[str, dict[str, bool]] = {}
    for check in run.checks:
        passed.setdefault(check.cell, {})[check.variant] = check.status == "ok"
    attempts: dict[tuple[str, int], dict[int, list[Visit]]] = {}
    for visit in run.visits:
        attempts.setdefault((visit.cell, visit.round), {}).setdefault(visit.attempt, []).append(visit)
    for (cell, index), tries in attempts.items():
        last = tries[max(tries)]
        if len(last) == sum(passed.get(cell, {}).values()) + 1:
            yield cell, index, last
