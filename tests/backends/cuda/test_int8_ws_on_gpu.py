# SPDX-License-Identifier: MIT
"""The tests of prefill on `int8-ws`, in a process that can be ended: a kernel that never ends fails here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsa_bench.backends.cuda.probe import missing_gpu

pytestmark = pytest.mark.gpu
LIMIT_S = 180
"""Several times what the same tests of `previous` and `int8-tc` take."""


def test_int8_ws_passes_the_tests_of_prefill() -> None:
    missing = missing_gpu()
    if missing is not None:
        pytest.skip(missing)
    tests = Path(__file__).with_name("test_prefill_on_gpu.py")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "gpu", "-p", "no:cacheprovider", str(tests)]
    done = subprocess.run(
        command, env=os.environ | {"TEST_INT8_WS": "1"}, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
