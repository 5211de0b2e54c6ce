# SPDX-License-Identifier: MIT
"""The host's check that a cell's inputs keep int8-tc inside its error bounds."""

import dataclasses

import numpy as np
import pytest

from dsa_bench.backends.cuda.conditions import refuse_beyond_fp16
from dsa_bench.data.synthetic import decode_inputs
from dsa_bench.model.errors import BadInput
from dsa_bench.model.inputs import DecodeInputs
from dsa_bench.model.request import DataSpec
from dsa_bench.model.shape import DecodeShape


def inputs(**knobs: float) -> DecodeInputs:
    return decode_inputs(DecodeShape(2, 256, 128), DataSpec(**knobs))


def test_data_like_a_models_pass() -> None:
    refuse_beyond_fp16(inputs())


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"query_std": 11.2}, "budget of 0.125"),
        ({"query_std": 1e7}, "beyond FP16's 65504"),
        ({"value_scale_multiplier": 1.2e7}, "above int8-tc's 65536"),
    ],
)
def test_data_beyond_a_condition_name_it_and_what_to_do(knobs: dict[str, float], message: str) -> None:
    with pytest.raises(BadInput, match=message) as refusal:
        refuse_beyond_fp16(inputs(**knobs))
    assert "--kernels previous" in str(refusal.value)


@pytest.mark.parametrize("scale", [1.5, -0.1, float("nan")])
def test_the_softmax_scale_is_at_most_one(scale: float) -> None:
    with pytest.raises(BadInput, match="softmax scale"):
        refuse_beyond_fp16(dataclasses.replace(inputs(), scale=scale))


def test_what_is_not_a_number_is_beyond_every_bound() -> None:
    broken = inputs()
    broken.value_scale[0, 0] = np.nan
    with pytest.raises(BadInput, match="value_scale"):
        refuse_beyond_fp16(broken)
    broken = inputs()
    broken.key_scale[1, 3] = np.inf
    with pytest.raises(BadInput, match="query"):
        refuse_beyond_fp16(broken)
