# SPDX-License-Identifier: MIT
"""Case F2: compiler and headers of one version, with fake folders and packages; and what a missing package says."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsa_bench.jit import compiler, optional
from dsa_bench.model.errors import CannotMeasure

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install fake packages: a compiler of one version, a folder of headers of another, or neither."""

    def install(version: tuple[int, int] | None, headers: Path | None) -> None:
        library = tmp_path / "site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"

        def load_nvidia_dynamic_lib(name: str) -> Any:
            if version is None:
                raise RuntimeError(f"Failed to dlopen lib{name}.so.12")
            return SimpleNamespace(abs_path=str(library))

        modules = {
            "cuda.pathfinder": SimpleNamespace(
                load_nvidia_dynamic_lib=load_nvidia_dynamic_lib,
                find_nvidia_header_directory=lambda name: str(headers) if headers else None,  # pyright: ignore
            ),
            "cuda.bindings.nvrtc": SimpleNamespace(nvrtcVersion=lambda: (0, *(version or ()))),
        }
        monkeypatch.setattr(compiler, "load", modules.__getitem__)

    compiler.toolchain.cache_clear()
    yield install
    compiler.toolchain.cache_clear()


def header_folder(folder: Path, cuda: int) -> Path:
    folder.mkdir(parents=True)
    (folder / "cuda.h").write_text(f"#ifndef X\n#define CUDA_VERSION {cuda}\n#endif\n")
    return folder


def test_one_version_is_used_and_named(install: Install, tmp_path: Path) -> None:
    include = header_folder(tmp_path / "site-packages/nvidia/cuda_runtime/include", 12090)
    install((12, 9), include)
    assert compiler.toolchain().include == include
    assert compiler.compiler_version() == "12.9"


def test_a_wheel_makes_the_version_exact(install: Install, tmp_path: Path) -> None:
    (tmp_path / "site-packages/nvidia_cuda_nvrtc_cu12-12.9.86.dist-info").mkdir(parents=True)
    (tmp_path / "site-packages/nvidia_cuda_nvrtc-13.0.88.dist-info").mkdir()
    install((12, 9), header_folder(tmp_path / "include", 12090))
    assert compiler.compiler_version() == "12.9.86"


def test_two_versions_are_refused_and_both_named(install: Install, tmp_path: Path) -> None:
    system = header_folder(tmp_path / "opt/cuda/include", 12000)
    install((12, 9), system)
    with pytest.raises(CannotMeasure) as refusal:
        compiler.toolchain()
    message = str(refusal.value)
    assert "NVRTC 12.9" in message
    assert f"CUDA 12.0 ({system})" in message
    assert message.endswith("pip install 'nvidia-cuda-runtime-cu12==12.9.*'")
    assert refusal.value.exit_code == 3


@pytest.mark.parametrize("folder", [None, "empty"])
def test_missing_headers_name_their_package(install: Install, tmp_path: Path, folder: str | None) -> None:
    install((13, 0), tmp_path / folder if folder else None)
    with pytest.raises(CannotMeasure, match=r"headers are missing: pip install 'nvidia-cuda-runtime==13\.0\.\*'"):
        compiler.toolchain()


def test_a_missing_compiler_names_its_package(install: Install) -> None:
    install(None, None)
    with pytest.raises(CannotMeasure, match=r"nvidia-cuda-nvrtc.*dsa-bench\[cuda13\]"):
        compiler.toolchain()


@pytest.mark.parametrize(("name", "extra"), [("cupy_absent", "cuda13"), ("torch.absent", "torch")])
def test_a_missing_package_names_its_extra(name: str, extra: str) -> None:
    with pytest.raises(CannotMeasure, match=rf"cannot import {name} \(No module.*pip install 'dsa-bench\[{extra}\]'"):
        optional.load(name)


def test_an_installed_package_is_loaded() -> None:
    import json

    assert optional.load("json") is json
