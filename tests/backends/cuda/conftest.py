# SPDX-License-Identifier: MIT
"""The GPU of the tests marked `gpu`; without one each skips with the reason."""

from collections.abc import Iterator
from typing import Any

import pytest

from dsa_bench.backends.cuda.probe import missing_gpu
from dsa_bench.model.shape import Op


@pytest.fixture(autouse=True)
def plain_environment() -> None:
    """These tests see the machine as it is."""


def _backend(op: Op) -> Iterator[Any]:
    missing = missing_gpu()
    if missing is not None:
        pytest.skip(missing)
    from dsa_bench.backends.cuda.backend import CudaBackend

    backend = CudaBackend(op)
    yield backend
    backend.close()


@pytest.fixture(scope="session")
def backend() -> Iterator[Any]:
    yield from _backend("decode")


@pytest.fixture(scope="session")
def prefill_backend() -> Iterator[Any]:
    yield from _backend("prefill")
