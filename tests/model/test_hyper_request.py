# SPDX-License-Identifier: MIT
"""What is measured in the cells of `mix` and `gate`."""

import pytest

from dsa_bench.model.errors import BadInput
from dsa_bench.model.hyper import GateShape, MixShape
from dsa_bench.model.hyper_request import HyperRequest
from dsa_bench.model.request import Policy

MIX = HyperRequest((MixShape(1),))
GATE = HyperRequest((GateShape(1),))


def names(request: HyperRequest) -> list[str]:
    return [variant.name for variant in request.variants]


def test_branchy_and_plain_come_first_and_copies_last() -> None:
    forms = ["pre-mix/branchy", "pre-mix/branch-free", "scaled-silu/branchy", "scaled-silu/branch-free"]
    assert names(MIX.on("cpu")) == forms
    assert names(MIX.on("cuda")) == [*forms, "copy/pre-mix", "copy/pre-mix/8-to-1", "copy/scaled-silu"]
    assert names(HyperRequest(MIX.shapes, ("scaled-silu",), ceiling=True)) == [*forms[2:], "copy/scaled-silu"]
    assert names(HyperRequest(MIX.shapes, ceiling=False).on("cuda")) == forms
    assert names(GATE.on("cuda")) == ["gate-mul+down/plain", "gate-mul+down/pdl", "gate-mul+down/pdl-early"]


def test_the_pair_is_timed_by_events() -> None:
    """Under programmatic dependent launch the second kernel's duration holds its wait for the first."""
    assert GATE.on("cuda").policy.timer == "events"
    assert GATE.on("cpu").policy.timer == "auto"
    assert MIX.on("cuda").policy.timer == "auto"
    with pytest.raises(BadInput, match=r"--timer cupti: .*; use --timer events"):
        HyperRequest(GATE.shapes, policy=Policy(timer="cupti"))
    assert HyperRequest(MIX.shapes, policy=Policy(timer="cupti")).op == "mix"
