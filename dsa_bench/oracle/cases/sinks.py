# SPDX-License-Identifier: MIT
"""Cases of attention sinks: candidates without a value, far above the tail that is the output."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from dsa_bench.model.inputs import SparseInputs
from dsa_bench.oracle.attention import F64, candidate_positions, folded_query, logits
from dsa_bench.oracle.cases.case import Case, Limit, Setting, Tolerance
from dsa_bench.oracle.cases.rows import HEAD_SIZE, row_inputs, row_logits

TAIL = Tolerance("tail rms", 2e-3)


def _spread_sink(lead: float) -> SparseInputs:
    """The first candidate is a sink, and all channels take part in its logits.

    Codes are half as large as a model's and queries twice, so that INT8 can hold its key.
    """
    inputs = row_inputs(rows=1, valid=2048, entries=2048, seed=5, query_std=2.8, key_std=20.0)
    set_sinks(inputs, [int(inputs.selected[0, 0])], lead)
    return inputs


def set_sinks(inputs: SparseInputs, sinks: Sequence[int], lead: float) -> None:
    """The logits of these positions are `lead` nats above the mean + 2 standard deviations of a row's others, and their
    values zero.

    They have one key, the shortest that gives every head of every row that logit.
    """
    positions, rows = list(sinks), range(inputs.shape.rows)
    inputs.value[:, positions] = 0
    tails = [sorted(set(candidate_positions(inputs, row)).difference(positions)) for row in rows]
    for kv_head in range(inputs.shape.kv_heads):
        rows_of_key = inputs.scale * np.concatenate([folded_query(inputs, row, kv_head) for row in rows])
        target = np.concatenate([_sink_target(logits(inputs, row, kv_head, tails[row]), lead) for row in rows])
        code = np.zeros(HEAD_SIZE)
        for _ in range(20):  # what clipping takes, the other channels make up for
            missing = target - rows_of_key @ code
            code = np.clip(code + np.linalg.lstsq(rows_of_key, missing, rcond=None)[0], -127, 127)
        inputs.key[kv_head, positions] = np.rint(code)


def _single_channel_sink(lead: float) -> SparseInputs:
    """The same with one channel for each head's sink alone: one product holds the logit, and takes all the rounding."""
    inputs = row_inputs(rows=1, valid=2048, entries=2048, seed=5)
    own, sink = np.arange(inputs.shape.group), int(inputs.selected[0, 0])
    inputs.query[:, :, own], inputs.key[:, :, own] = 0, 0
    inputs.key[:, sink], inputs.value[:, sink] = 0, 0
    inputs.key[:, sink, own] = 127
    for _, kv_head, x in row_logits(inputs):
        target = _sink_target(x[:, 1:], lead) / (inputs.scale * 127 * inputs.key_scale[kv_head, own])
        inputs.query[0, kv_head * inputs.shape.group + own, own] = target
    return inputs


def _sink_target(tail: F64, lead: float) -> F64:
    return tail.mean(axis=1) + 2 * tail.std(axis=1) + lead


def _sink_case(lead: int, *limits: Limit) -> Case:
    return Case(
        f"sink-{lead}",
        f"a candidate without a value, {lead} nats above the tail that is the output",
        (Setting(f"{lead} nats", partial(_spread_sink, float(lead))),),
        tiles_per_split=(0, 64),
        tolerance=TAIL,
        limits=limits,
    )


def _on_tensor_cores(reason: str, times: float) -> tuple[Limit, ...]:
    return Limit("int8-tc", reason, times, backend="cuda"), Limit("emulation", reason, times)


def _on_digits(times: float) -> tuple[Limit, ...]:
    reason = "a probability in 32 bits has few of them left for the tail, as no value_scale is above 2^8"
    return Limit("int8-digits", reason, times, backend="cuda"), Limit("emulation-digits", reason, times)


SINKS = (
    *map(_sink_case, (4, 8, 12, 16)),
    _sink_case(20, *_on_digits(20.0)),
    _sink_case(
        24,
        *_on_tensor_cores("FP16 holds the tail as subnormal numbers, as no value_scale is above 2^16", 8.0),
        *_on_digits(300.0),
    ),
    replace(
        _sink_case(16, *_on_tensor_cores("FP16 rounds the product that is the sink's logit, within the budget", 4.0)),
        name="single-channel-sink-16",
        shows="the same, with the candidate's logit in one product for each head",
        settings=(Setting("16 nats", partial(_single_channel_sink, 16.0)),),
    ),
)
