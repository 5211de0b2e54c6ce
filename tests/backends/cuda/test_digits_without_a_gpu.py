# SPDX-License-Identifier: MIT
"""The launches of `int8-digits`, built with doubles for the device: parameters, grids, workspace, refusals."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsa_bench.backends.cuda import sparse as cuda
from dsa_bench.backends.cuda import workspaces
from dsa_bench.backends.cuda.sparse import DeviceInputs, SparseLauncher
from dsa_bench.backends.cuda.workspaces import Mailboxes, empty_mailboxes, mailbox_bytes
from dsa_bench.data.synthetic import sparse_inputs
from dsa_bench.model.errors import VariantRefused
from dsa_bench.model.plan import SplitPlan, VariantPlan
from dsa_bench.model.request import DIGITS, DataSpec
from dsa_bench.model.shape import SparseShape, ceil_div
from dsa_bench.splits.digits import ALL_HEADS, FEW_HEADS

HEADS = {
    "decode_digits": ALL_HEADS,
    "decode_digits_long": ALL_HEADS,
    "decode_digits_few": FEW_HEADS,
    "decode_digits_few_long": FEW_HEADS,
    "decode_digits_resident": ALL_HEADS,
}
STEPS = {"decode_digits": 256, "decode_digits_few": 128}
SHAPE = SparseShape(3, 2000, 1000, 26)


def fake_kernel(name: str) -> Any:
    constants = {"head_size": 256, "max_group": 16, "heads_per_cta": HEADS[name]}
    constants["step"] = STEPS.get(name, 384)
    constants["max_cluster"] = 0 if name == "decode_digits_resident" else 16
    return SimpleNamespace(name=name, facts=SimpleNamespace(constants=constants))


def variant(shape: SparseShape, heads: int, splits: int, *, clustered: bool = True) -> VariantPlan:
    ctas = shape.row_heads * ceil_div(shape.group, heads) * splits
    return VariantPlan(DIGITS, (), SplitPlan(shape.tiles, splits), ctas, heads=heads, clustered=clustered)


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`built(shape, heads, splits)` is the launch of a call as it would reach the driver."""

    def launch(kernel: Any, grid: Any, arguments: Any, _: Any, *, cluster: int, cooperative: bool) -> Any:
        arguments = list(arguments)
        return SimpleNamespace(
            name=kernel.name, grid=grid, arguments=arguments, cluster=cluster, cooperative=cooperative
        )

    monkeypatch.setattr(cuda, "KernelLaunch", launch)
    for module in (cuda, workspaces):
        monkeypatch.setattr(module, "upload", lambda host: host)

    def build(shape: SparseShape, heads: int, splits: int, *, clusters: bool = True, scale: float = 1 / 16) -> Any:
        launcher = SparseLauncher({name: fake_kernel(name) for name in HEADS}, None, programmatic=True, sms=132)
        plan = variant(shape, heads, splits, clustered=clusters)
        small = sparse_inputs(SparseShape(1, 8, 4), DataSpec())
        device = DeviceInputs(small.query, small.key, small.value, small.key_scale, small.value_scale, small.selected,
                              scale)  # fmt: skip
        mailboxes = Mailboxes()
        if not clusters:
            mailboxes = Mailboxes.of(empty_mailboxes(mailbox_bytes(plan, shape)), plan, shape)
        (only,) = launcher.digits(plan, shape, device, mailboxes, small.query)
        return only

    return build


def test_arguments_are_what_the_kernels_declare(root: Path, built: Any) -> None:
    text = (root / "kernels/dsa/decode_digits.cu").read_text().replace("\\\n", " ")
    found = re.search(r"__launch_bounds__\([^)]*\)\s+name\(([^)]*)\)", text)
    assert found is not None
    kinds = {"*": "pointer", "int": "int", "float": "float"}
    declared = [next(kind for mark, kind in kinds.items() if mark in parameter) for parameter in found[1].split(",")]
    given = {np.int32: "int", np.float32: "float", np.uint64: "pointer", np.ndarray: "pointer"}
    for clusters in (True, False):
        assert [given[type(argument)] for argument in built(SHAPE, 12, 3, clusters=clusters).arguments] == declared


@pytest.mark.parametrize(
    ("heads", "clusters", "name", "splits", "grid", "heads_each"),
    [
        (FEW_HEADS, True, "decode_digits_few", 16, (64, 2, 3), 4),
        (FEW_HEADS, True, "decode_digits_few", 8, (32, 2, 3), 4),
        (FEW_HEADS, True, "decode_digits_few_long", 7, (28, 2, 3), 4),
        (ALL_HEADS, True, "decode_digits", 6, (12, 2, 3), 7),
        (ALL_HEADS, True, "decode_digits", 4, (8, 2, 3), 7),
        (ALL_HEADS, True, "decode_digits_long", 3, (6, 2, 3), 7),
        (ALL_HEADS, False, "decode_digits_resident", 6, (12, 2, 3), 7),
        (ALL_HEADS, False, "decode_digits_resident", 1, (2, 2, 3), 7),
    ],
)
def test_grids_follow_the_contract(
    built: Any, heads: int, clusters: bool, name: str, splits: int, grid: tuple[int, int, int], heads_each: int
) -> None:
    """13 heads of a group, 16 tiles."""
    launch = built(SHAPE, heads, splits, clusters=clusters)
    assert (launch.name, launch.grid, launch.cluster) == (name, grid, splits if clusters else 0)
    assert launch.cooperative == (not clusters and splits > 1), "unsplit, no CTA waits for another"
    assert launch.arguments[9:16] == [2000, 1000, 13, heads_each, splits, 16 // splits, 16 % splits]


def test_only_launches_without_clusters_have_mailboxes_which_are_empty_and_do_not_overlap(built: Any) -> None:
    assert [int(argument) for argument in built(SHAPE, ALL_HEADS, 6).arguments[7:9]] == [0, 0]
    pieces, sums = built(SHAPE, ALL_HEADS, 6, clusters=False).arguments[7:9]
    ctas = 3 * 2 * 2 * 6  # rows, KV heads, parts of a group, splits
    assert (pieces.size - sums.size, sums.size) == (ctas * 12 * 256, ctas * 6 * 12 * 2)
    assert np.shares_memory(pieces, sums)
    assert (pieces.view(np.uint32) == 0xFFFFFFFF).all()


@pytest.mark.parametrize(
    ("shape", "splits", "takes"),
    [
        (SparseShape(1, 300, 200, 24, 2, 128), 1, "head size 256"),
        (SparseShape(1, 300, 200, 34), 1, "up to 16 query heads per KV head"),
        (SparseShape(1, 2**21, 2**20 + 1), 1, "up to 1048576 candidates"),
        (SparseShape(65536, 65536, 200), 1, "up to 65535 rows and KV heads"),
        (SparseShape(1, 300, 200, 65536, 65536), 1, "up to 65535 rows and KV heads"),
        (SparseShape(1, 300, 200), 9, "other numbers of splits than 9"),
    ],
)
def test_what_it_does_not_take_is_refused(built: Any, shape: SparseShape, splits: int, takes: str) -> None:
    with pytest.raises(VariantRefused, match=f"decode_digits[a-z_]* takes {takes}, not op=decode"):
        built(shape, ALL_HEADS, splits, clusters=splits > 1)


def test_softmax_scales_and_splits_without_clusters_have_limits(built: Any) -> None:
    with pytest.raises(VariantRefused, match="softmax scales from 0 to 1"):
        built(SHAPE, ALL_HEADS, 2, scale=1.5)
    assert built(SHAPE, ALL_HEADS, 32, clusters=False).grid == (64, 2, 3)
    with pytest.raises(VariantRefused, match="other numbers of splits than 33"):
        built(SHAPE, ALL_HEADS, 33, clusters=False)
