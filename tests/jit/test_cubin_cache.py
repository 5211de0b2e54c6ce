# SPDX-License-Identifier: MIT
"""Cases F4, F5 and F6 of the cache, with a fake compiler: crowds, dead writers, broken entries, folders that refuse."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dsa_bench.jit import cache, compiler, modules
from dsa_bench.jit.sources import Sources
from dsa_bench.jit.target import Target
from dsa_bench.model.errors import CompileFailed

CUBIN = b"\x7fELF\x02\x01".ljust(64, b"\0") + b"code\n" * 1000
LOG = """Compiling entry function 'k' for 'sm_80'
0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
Used 8 registers
"""
PROGRAM = f"""
import sys, time
from pathlib import Path
from dsa_bench.jit import compiler, modules
from dsa_bench.jit.target import Target

def slow_compiler(sources, target, defines):
    print("compiling", flush=True)
    time.sleep(0.5)
    return compiler.Binary(sources.name, {LOG!r}, {CUBIN!r})

compiler.compile_sources, compiler.compiler_version = slow_compiler, lambda: "1.0"
print(modules.compile_modules(["k"], Target(80), root=Path(sys.argv[1]))[0].kernels["k"].registers)
"""
REPOSITORY = Path(modules.__file__).parents[2]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/k.cu").write_text("kernel")
    return tmp_path / "kernels"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DSA_BENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of the test's own; warnings are given afresh."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    for cached in (cache._writable, cache._warn):  # pyright: ignore[reportPrivateUsage]
        cached.cache_clear()
    return tmp_path / "tmp" / f"dsa-bench-{os.getuid()}"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the sources that the fake compiler was asked for."""
    names: list[str] = []

    def fake(sources: Sources, target: Target, defines: object) -> compiler.Binary:
        names.append(sources.name)
        if "broken" in sources.text:
            raise CompileFailed("broken")
        return compiler.Binary(sources.name, LOG, CUBIN)

    monkeypatch.setattr(compiler, "compile_sources", fake)
    monkeypatch.setattr(compiler, "compiler_version", lambda: "1.0")
    return names


def compile_once(root: Path, target: int = 80) -> modules.CompiledModule:
    return modules.compile_modules(["k"], Target(target), root=root)[0]


def crowd(root: Path, folder: Path) -> list[subprocess.Popen[str]]:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "DSA_BENCH_CACHE": str(folder)}
    command = [sys.executable, "-c", PROGRAM, str(root)]
    return [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(8)]


def test_eight_processes_publish_one_entry(root: Path, folder: Path) -> None:
    for process in crowd(root, folder):
        output, _ = process.communicate(timeout=60)
        assert (process.returncode, output.split()[-1]) == (0, "8")
    assert len(list(folder.iterdir())) == 1


def test_one_of_eight_is_killed_and_a_dead_lock_lies_around(root: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "lock").touch()
    victim, *others = crowd(root, folder)
    assert victim.stdout
    assert victim.stdout.readline() == "compiling\n"
    victim.send_signal(signal.SIGKILL)
    assert victim.wait(timeout=60) == -signal.SIGKILL
    victim.stdout.close()
    assert all(process.communicate(timeout=60)[0].endswith("8\n") and process.returncode == 0 for process in others)
    assert len(list(folder.iterdir())) == 2


def test_key_holds_source_target_and_compiler(
    root: Path, folder: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compile_once(root)
    (root / "k.cu").write_text("kernel // comment")
    assert compile_once(root) == first
    assert len(compiled) == 1
    compile_once(root, 90)
    (root / "k.cu").write_text("another")
    compile_once(root)
    monkeypatch.setattr(compiler, "compiler_version", lambda: "1.1")
    assert compile_once(root).compiler == "1.1"
    assert len(compiled) == len(list(folder.iterdir())) == 4


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "foreign"])
def test_a_damaged_entry_is_a_miss_and_is_replaced(root: Path, folder: Path, compiled: list[str], damage: str) -> None:
    compile_once(root)
    (entry,) = folder.iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(
        {"cut": whole[:-7], "empty": b"", "flipped": whole[:70] + b"C" + whole[71:], "foreign": CUBIN}[damage]
    )
    assert compile_once(root).cubin == CUBIN
    assert entry.read_bytes() == whole
    assert len(compiled) == 2


def test_an_entry_starts_with_the_cubin_and_names_its_source(root: Path, folder: Path, compiled: list[str]) -> None:
    compile_once(root)
    (entry,) = folder.iterdir()
    assert entry.read_bytes().startswith(CUBIN)
    assert cache.load_entry(entry.name) == compiler.Binary("k.cu", LOG, CUBIN)


def test_a_failure_is_not_stored(root: Path, folder: Path, compiled: list[str]) -> None:
    (root / "k.cu").write_text("broken")
    for _ in range(2):
        with pytest.raises(CompileFailed, match="broken"):
            compile_once(root)
    assert len(compiled) == 2
    assert not folder.exists()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"DSA_BENCH_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/"}, "/a"),
        ({"DSA_BENCH_CACHE": "", "XDG_CACHE_HOME": "/b", "HOME": "/"}, "/b/dsa-bench"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/"}, "/.cache/dsa-bench"),
        ({"XDG_CACHE_HOME": "", "HOME": "/"}, "/.cache/dsa-bench"),
        ({"HOME": "/nonexistent"}, None),
        ({}, None),
    ],
)
def test_choice_of_folder(environment: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DSA_BENCH_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cache.configured_folder() == (Path(expected) if expected else None)


@pytest.mark.parametrize(
    "refusing", [{"DSA_BENCH_CACHE": "/proc/dsa"}, {"HOME": "/nonexistent"}, {}, {"HOME": "/proc"}]
)
def test_a_folder_that_refuses_costs_one_warning(
    root: Path,
    temporary: Path,
    compiled: list[str],
    refusing: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("DSA_BENCH_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in refusing.items():
        monkeypatch.setenv(name, value)
    (root / "k2.cu").write_text("second")
    for _ in range(2):
        modules.compile_modules(["k", "k2"], Target(80), root=root)
    out, err = capsys.readouterr()
    assert sorted(compiled) == ["k.cu", "k2.cu"]
    assert len(list(temporary.iterdir())) == 2
    assert temporary.stat().st_mode & 0o777 == 0o700
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("warning: ")
    assert str(temporary) in err
    assert "DSA_BENCH_CACHE" in err
    assert not Path("/nonexistent").exists()


def test_a_temporary_folder_that_others_can_write_is_not_used(
    root: Path,
    temporary: Path,
    compiled: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    temporary.mkdir()
    temporary.chmod(0o777)
    monkeypatch.setenv("DSA_BENCH_CACHE", "/proc/dsa")
    assert compile_once(root).cubin == compile_once(root).cubin
    assert len(compiled) == 2
    assert not list(temporary.iterdir())
    assert "no cache" in capsys.readouterr().err


def test_a_store_that_fails_is_a_warning(
    root: Path, folder: Path, compiled: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    compile_once(root)
    (entry,) = folder.iterdir()
    entry.unlink()
    entry.mkdir()
    assert compile_once(root).cubin == CUBIN
    assert list(folder.iterdir()) == [entry]
    assert "cannot store compiled kernels" in capsys.readouterr().err


def test_what_compiles_nothing_creates_nothing_and_loads_no_driver(tmp_path: Path, root: Path) -> None:
    program = """
import sys
from pathlib import Path
from dsa_bench.jit import cache, compiler, load, modules, resources, sources, target, worker
modules.module_hash("k", root=Path(sys.argv[1]))
assert cache.load_entry("absent") is None
assert not {"cupy", "cuda.bindings", "torch", "numpy", "cupti", "pynvml"} & set(sys.modules)
assert not any(library in Path("/proc/self/maps").read_text() for library in ("libcuda", "libnvrtc"))
"""
    home = tmp_path / "home"
    home.mkdir()
    environment = {
        "PYTHONPATH": str(REPOSITORY),
        "HOME": str(home),
        "TMPDIR": str(home),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    subprocess.run([sys.executable, "-c", program, str(root)], env=environment, check=True, timeout=60)
    assert not list(home.iterdir())
