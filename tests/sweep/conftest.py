# SPDX-License-Identifier: MIT
"""Recorded sweeps whose times are made up."""

from collections.abc import Callable

import pytest
from sweep_doubles import swept

from dsa_bench.model.run import Run


@pytest.fixture
def sweep() -> Callable[..., Run]:
    return swept
