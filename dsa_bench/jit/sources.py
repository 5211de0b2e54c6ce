# SPDX-License-Identifier: MIT
"""The kernels' sources: where they lie, what a module includes, and its hash."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsa_bench.model.errors import BadInput, CannotMeasure

_PACKAGE = Path(__file__).resolve().parent.parent

# What no comment or blank starts in: raw strings, strings, characters, words, numbers (1'000 is one, not a character).
_WHOLE = "|".join(
    (
        r'(?:u8|[uUL])?R"([^()\\\s]{0,16})\(.*?\)\2"',
        r'"(?:\\.|[^"\\\n])*"',
        r"'(?:\\.|[^'\\\n])*'",
        r"[A-Za-z_]\w*",
        r"\d(?:'?[\w.])*",
    )
)
_INCLUDE = re.compile(r'^# ?include ?"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sources:
    """One module's source and the headers that it reaches by #include "...", each under its name below kernels/."""

    name: str
    text: str
    headers: Mapping[str, str]


def kernels_folder() -> Path:
    """The kernels of this installation: inside the package in a wheel, beside it in a source tree."""
    for folder in (_PACKAGE / "kernels", _PACKAGE.parent / "kernels"):
        if folder.is_dir():
            return folder
    raise CannotMeasure(
        f"no kernels folder in or beside {_PACKAGE}: the installation is incomplete, install dsa-bench again"
    )


def module_names(root: Path | None = None) -> list[str]:
    """The modules below a kernels folder (by default this installation's): "dsa/merge" for dsa/merge.cu."""
    folder = root or kernels_folder()
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.cu"))


def read_sources(module: str, root: Path | None = None) -> Sources:
    """One module with the transitive closure of its own headers.

    An #include "..." is looked up below `root` only, as the compiler will; one that is not there is a system header.
    """
    folder = root or kernels_folder()
    if module not in (known := module_names(folder)):
        raise BadInput(f"no kernel module {module!r}; there are: {' '.join(known) or 'none'}")
    name = f"{module}.cu"
    texts = {name: (folder / name).read_text(encoding="utf-8")}
    queue = [name]
    while queue:
        for header in _INCLUDE.findall(normalised(texts[queue.pop()])):
            if header not in texts and (folder / header).is_file():
                texts[header] = (folder / header).read_text(encoding="utf-8")
                queue.append(header)
    return Sources(name, texts.pop(name), texts)


def kernel_hash(sources: Sources, defines: Mapping[str, int | str], flags: Sequence[str]) -> str:
    """Sixteen hexadecimal digits over all of ours that can change the machine code; comments and blanks cannot."""
    files = sorted({**sources.headers, sources.name: sources.text}.items())
    parts = [sources.name, *flags, *sorted(f"-D{name}={value}" for name, value in defines.items())]
    parts += [part for name, text in files for part in (name, normalised(text))]
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(b"%d:%b" % (len(data), data))
    return digest.hexdigest()[:16]


def normalised(text: str) -> str:
    """The source without comments, each run of blanks one space; preprocessor lines keep a line to themselves."""
    text = _outside_literals(r"//[^\n]*|/\*.*?(?:\*/|\Z)", lambda _: " ", text.replace("\\\n", ""))
    return _outside_literals(r"\s*#[^\n]*\s*|\s+", _collapsed, text).strip()


def _collapsed(run: str) -> str:
    if "#" not in run:
        return " "
    return "\n" + _outside_literals(r"\s+", lambda _: " ", run.strip()) + "\n"


def _outside_literals(pattern: str, replace: Callable[[str], str], text: str) -> str:
    return re.sub(f"({_WHOLE})|{pattern}", lambda match: match[1] or replace(match[0]), text, flags=re.DOTALL)
