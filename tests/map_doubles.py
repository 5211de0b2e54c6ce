# SPDX-License-Identifier: MIT
"""Tuned maps and launch facts on fake devices, and files that are no map."""

from typing import Any

from dsa_bench.dispatch.look_up import LaunchFacts
from dsa_bench.model.splits_map import MapCell, MapDevice, MapPolicy, MapRule, SplitsMap, SplitTable, Validation

H200 = MapDevice("NVIDIA H200", "9.0", 132, 62914560, "580.1", "CUDA 13.2")
A100 = MapDevice("NVIDIA A100", "8.0", 108, 41943040, "580.1", "CUDA 13.2")


def cell(rows: int, tiles: int, us: dict[str, float], best: int, auto: int = 1, **changes: Any) -> MapCell:
    ratio = us[str(best)] / us[str(auto)]
    fields: dict[str, Any] = {"ratio": (ratio, ratio * 0.99, ratio * 1.01), "ties": ()}
    return MapCell(rows, tiles, auto, us[str(auto)], us, best, **(fields | changes))


def table(**changes: Any) -> SplitTable:
    """Rows 1, 2, 4, 8 and 32 tiles: 2 tiles per split win at rows 2 and 4."""
    us = {"1": 11.9, "2": 10.4, "3": 10.5, "4": 11.2}
    fields: dict[str, Any] = {
        "op": "decode", "kernel": "int8-tc", "kernel_hash": "ab" * 8, "cta_slots": 396, "tile": 64, "max_splits": 32,
        "head_size": 256, "group": 12, "kv_heads": 2, "l2": "cold",
        "policy": MapPolicy("cupti", 16, 8192, 0.01, 0.95),
        "cells": tuple(cell(rows, 32, us, 2, ties=(3,)) for rows in (1, 2, 4, 8)),
        "rules": (MapRule((2, 4), (32, 32), 2),), "validation": Validation(None, None, None, None),
    }  # fmt: skip
    return SplitTable(**(fields | changes))


def splits_map(*tables: SplitTable, device: MapDevice = H200) -> SplitsMap:
    return SplitsMap("2026-01-02T03:04:05Z", "dsa-bench 0.1.0", device, tables or (table(),))


def facts(**changes: Any) -> LaunchFacts:
    fields: dict[str, Any] = {
        "op": "decode", "kernel": "int8-tc", "kernel_hash": "ab" * 8, "device": "NVIDIA H200",
        "compute_capability": "9.0", "sm_count": 132, "cta_slots": 396, "tile": 64, "head_size": 256, "group": 12,
        "kv_heads": 2, "l2": "cold", "driver": "580.1", "runtime": "CUDA 13.2",
    }  # fmt: skip
    return LaunchFacts(**(fields | changes))


DAMAGED = [
    (b"", "line 1 column 1 is not JSON"), (b'{"schema":1,"entries":[', "line 1 column 24 is not JSON"),
    (b"\xff\xfe", "byte 0 is not UTF-8 text"), (b"[]", "/ is no object"), (b"null", "/ is no object"),
    (b"\xef\xbb\xbf{}", "line 1 column 1 is not JSON"), (b"[" * 100_000, "/ is not JSON that can be read"),
    (b"{}", "/schema is 'None'"), (b"{} {}", "line 1 column 4 is not JSON"),
    (b'{"schema":' + b"9" * 5000 + b"}", "/ is not JSON that can be read"),
]  # fmt: skip
"""(bytes, what the error says after the file's name)"""
