# SPDX-License-Identifier: MIT
"""Maps and launch facts on fake devices."""

from collections.abc import Callable

import pytest
from map_doubles import A100, cell, facts, splits_map, table

from dsa_bench.dispatch.look_up import LaunchFacts
from dsa_bench.model.splits_map import MapCell, MapDevice, SplitsMap, SplitTable


@pytest.fixture
def make_cell() -> Callable[..., MapCell]:
    return cell


@pytest.fixture
def make_table() -> Callable[..., SplitTable]:
    return table


@pytest.fixture
def make_map() -> Callable[..., SplitsMap]:
    return splits_map


@pytest.fixture
def make_facts() -> Callable[..., LaunchFacts]:
    return facts


@pytest.fixture
def a100() -> MapDevice:
    return A100
