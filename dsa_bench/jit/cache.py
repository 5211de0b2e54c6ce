# SPDX-License-Identifier: MIT
"""Compiled modules on disk. An entry is one file, published by one rename; nothing is locked, so nothing goes stale.

An entry is a CUBIN (tools for CUBINs read it as it is) followed by one line of JSON and the SHA-256 of both. Whatever
does not match its digest is a miss and is replaced. Folders are made when the first entry is stored.
"""

import functools
import hashlib
import json
import os
import secrets
import stat
import sys
import tempfile
import threading
from pathlib import Path

from dsa_bench.jit.compiler import Binary

_DIGEST = 64  # hexadecimal digits
_PUBLISHING = threading.Lock()


def load_entry(key: str) -> Binary | None:
    """What was stored under a key, from the configured folder or the one that stands in for it."""
    folders = (configured_folder(), _temporary_folder())
    return next((binary for folder in folders if folder and (binary := _read(folder / key))), None)


def store_entry(key: str, binary: Binary) -> None:
    """Write an entry aside and rename it. A cache that fails costs time, never the result: it is one warning."""
    with _PUBLISHING:
        if folder := _writable(configured_folder()):
            _publish(folder, key, binary)


def _publish(folder: Path, key: str, binary: Binary) -> None:
    aside = folder / f".{key}.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        try:
            aside.write_bytes(_encode(binary))
            aside.replace(folder / key)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        _warn(f"cannot store compiled kernels in {folder} ({error.strerror})")


def configured_folder() -> Path | None:
    """$DSA_BENCH_CACHE, else dsa-bench in an absolute $XDG_CACHE_HOME, else in ~/.cache of a home that exists."""
    if folder := os.environ.get("DSA_BENCH_CACHE"):
        return Path(folder).absolute()
    if (xdg := os.environ.get("XDG_CACHE_HOME")) and os.path.isabs(xdg):
        return Path(xdg) / "dsa-bench"
    if (home := os.environ.get("HOME")) and os.path.isdir(home):
        return Path(home) / ".cache" / "dsa-bench"
    return None


@functools.cache
def _writable(wanted: Path | None) -> Path | None:
    """Make and return the folder for new entries: the wanted one, else with a warning a temporary one or none."""
    if wanted and _made(wanted):
        return wanted
    chosen = _temporary_folder(make=True)
    refused = f"cache folder {wanted} is not writable" if wanted else "no home folder for the cache"
    _warn(f"{refused}; compiled kernels go to {chosen or 'no cache'}; set DSA_BENCH_CACHE to a writable folder")
    return chosen


def _temporary_folder(make: bool = False) -> Path | None:
    """The user's folder for temporary entries, unless anybody else can have put machine code there."""
    try:
        folder = Path(tempfile.gettempdir()) / f"dsa-bench-{os.getuid()}"
        if make and not _made(folder):
            return None
        status = folder.lstat()
    except FileNotFoundError:
        return None
    private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
    return folder if private else None


def _made(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def _encode(binary: Binary) -> bytes:
    facts = json.dumps({"source": binary.source, "log": binary.log})
    body = binary.cubin + b"\n" + facts.encode()
    return body + hashlib.sha256(body).hexdigest().encode()


def _read(path: Path) -> Binary | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    body, digest = data[:-_DIGEST], data[-_DIGEST:]
    if hashlib.sha256(body).hexdigest().encode() != digest:
        return None
    cubin, _, facts = body.rpartition(b"\n")
    try:
        return Binary(cubin=cubin, **json.loads(facts))
    except (ValueError, TypeError):  # whole, but not of this version
        return None


@functools.cache
def _warn(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr)
