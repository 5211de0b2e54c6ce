# SPDX-License-Identifier: MIT
"""Launches of the sparse-attention kernels over one cell: each checks the limits, then builds what a call enqueues.

The parameter lists and grids are the contracts at the head of kernels/**/*.cu.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsa_bench.backends.cuda.launch import Kernel, KernelLaunch
from dsa_bench.backends.cuda.memory import NULL, Device, upload
from dsa_bench.backends.cuda.workspaces import Mailboxes, Unions, UnionShapes, Workspace
from dsa_bench.model.errors import VariantRefused
from dsa_bench.model.inputs import SparseInputs
from dsa_bench.model.plan import SplitPlan, VariantPlan
from dsa_bench.model.request import UNION, WS
from dsa_bench.model.shape import TILE, SparseShape, ceil_div
from dsa_bench.splits.digits import CLUSTERS, FEW_HEADS
from dsa_bench.splits.rules import MAX_SPLITS

GRID_LIMIT_YZ = 65535
MAX_SCALE = 1.0
"""Softmax scale up to which the bounds of `int8-tc` hold (seed 000, section 1)."""
MAX_CANDIDATES = 2**20
"""Candidates up to which its integer sums are exact (kernels/dsa/decode_int8_tc.cu)."""
WS_FEW_CTAS_PER_SM = 2
"""CTAs per multiprocessor up to which `int8-ws` is launched with more stages (kernels/dsa/prefill_int8_ws.cu)."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceInputs:
    """One copy of a cell's tensors on the device, shaped as SparseInputs says."""

    query: Device
    key: Device
    value: Device
    key_scale: Device
    value_scale: Device
    selected: Device
    scale: float

    @classmethod
    def upload(cls, inputs: SparseInputs) -> "DeviceInputs":
        return cls(
            upload(inputs.query),
            upload(inputs.key),
            upload(inputs.value),
            upload(inputs.key_scale),
            upload(inputs.value_scale),
            upload(inputs.selected),
            inputs.scale,
        )

    @property
    def pointers(self) -> tuple[Device, ...]:
        """In the order of every attention kernel's parameters."""
        return self.query, self.key, self.value, self.key_scale, self.value_scale, self.selected


@dataclass(frozen=True, slots=True, eq=False)
class Paths:
    """How a kernel with several paths chooses its arithmetic, for tests and explanations; by default it chooses, and
    nobody counts.

    forced  -1, or the path that every CTA takes
    counts  uint32 counters on the device, one for each path, to which each CTA adds; or a null pointer
    """

    forced: int = -1
    counts: Any = NULL


AUTOMATIC_PATHS = Paths()


class SparseLauncher:
    """Builds the launches of one call, on one stream, for the kernels that loaded.

    sms  multiprocessors of the device
    """

    def __init__(self, kernels: Mapping[str, Kernel], stream: Any, *, programmatic: bool, sms: int) -> None:
        self._kernels = kernels
        self._stream = stream
        self._programmatic = programmatic
        self._sms = sms

    def launches(
        self,
        variant: VariantPlan,
        shape: SparseShape,
        inputs: DeviceInputs,
        workspace: Workspace,
        out: Device,
        paths: Paths = AUTOMATIC_PATHS,
    ) -> list[KernelLaunch]:
        """The kernels of one call in order. VariantRefused if the kernel does not take the shape or the scale."""
        if variant.kernel == "previous":
            attention = self._grouped(shape, variant.split, inputs, workspace)
        else:
            attention = self._int8_tc(shape, variant.split, inputs, workspace, paths)
        return [attention, self._merge(shape, variant.split, workspace, out)]

    def digits_kernel(self, variant: VariantPlan) -> Kernel:
        """The device function of `int8-digits` for a geometry: of those in clusters, the one with the shortest step
        that holds a split, or with the longest."""
        if not variant.clustered:
            return self._kernels["decode_digits_resident"]
        clustered = "decode_digits_few" if variant.heads == FEW_HEADS else "decode_digits"
        short, long = self._kernels[clustered], self._kernels[f"{clustered}_long"]
        return short if variant.split.tiles_per_split * TILE <= short.facts.constants["step"] else long

    def digits(
        self,
        variant: VariantPlan,
        shape: SparseShape,
        inputs: DeviceInputs,
        mailboxes: Mailboxes,
        out: Device,
        paths: Paths = AUTOMATIC_PATHS,
    ) -> list[KernelLaunch]:
        """The one kernel of a call of `int8-digits`. VariantRefused if it does not take the shape, scale or splits; of
        splits that are no cluster, when it is enqueued, if the device does not hold all CTAs at once."""
        kernel, splits = self.digits_kernel(variant), variant.split.splits
        constants = kernel.facts.constants
        self._refuse_beyond_tile(kernel, shape)
        self._refuse_beyond_bounds(kernel, shape, inputs.scale)
        grid_fits = max(shape.rows, shape.kv_heads) <= GRID_LIMIT_YZ
        self._refuse_unless(kernel, grid_fits, f"up to {GRID_LIMIT_YZ} rows and KV heads", shape)
        takes = splits in CLUSTERS if variant.clustered else splits <= MAX_SPLITS
        self._refuse_unless(kernel, takes, f"other numbers of splits than {splits}", shape)
        parts = ceil_div(shape.group, constants["heads_per_cta"])
        sizes = (shape.context, shape.candidates, shape.group, ceil_div(shape.group, parts), splits)
        arguments = (
            *inputs.pointers, out, mailboxes.pieces, mailboxes.sums,
            *map(np.int32, (*sizes, shape.tiles // splits, shape.tiles % splits)), np.float32(inputs.scale),
            np.int32(paths.forced), paths.counts,
        )  # fmt: skip
        grid = (splits * parts, shape.kv_heads, shape.rows)
        cluster, cooperative = (splits, False) if variant.clustered else (0, splits > 1)
        return [KernelLaunch(kernel, grid, arguments, self._stream, cluster=cluster, cooperative=cooperative)]

    def prefill_kernels(self, variant: VariantPlan) -> list[Kernel]:
        """The device functions of a call of a prefill kernel in order, as its number of CTAs chooses them."""
        few = variant.ctas <= WS_FEW_CTAS_PER_SM * self._sms
        ws = "prefill_int8_ws_few" if few else "prefill_int8_ws"
        names = {"previous": ("prefill_bf16",), WS: (ws,), UNION: ("prefill_unite", "prefill_int8_union", ws)}
        return [self._kernels[name] for name in names.get(variant.kernel, ("prefill_int8_tc",))]

    def union_shapes(self, variant: VariantPlan, shape: SparseShape) -> UnionShapes | None:
        """Memory that prefill calls need beside their tensors, if they follow each other. Only `int8-union` does."""
        if variant.kernel != UNION:
            return None
        unite, union, _ = self.prefill_kernels(variant)
        return UnionShapes(
            (self._groups(union, shape), unite.facts.constants["union_bytes"]), (shape.rows, shape.kv_heads)
        )

    def prefill(
        self,
        variant: VariantPlan,
        shape: SparseShape,
        inputs: DeviceInputs,
        out: Device,
        paths: Paths = AUTOMATIC_PATHS,
        unions: Unions | None = None,
    ) -> list[KernelLaunch]:
        """The kernels of a prefill call in order. VariantRefused if the last does not take the shape or the scale.

        unions  of the shapes that union_shapes says
        """
        *before, kernel = self.prefill_kernels(variant)
        self._refuse_beyond_tile(kernel, shape)
        if variant.kernel != "previous":
            self._refuse_beyond_bounds(kernel, shape, inputs.scale)
        grid = self._grid(kernel, shape, shape.kv_heads, 1)
        sizes = map(np.int32, (shape.context, shape.candidates, shape.group))
        arguments: list[Any] = [*inputs.pointers, out, *sizes, np.float32(inputs.scale)]
        if variant.kernel == UNION:
            assert unions is not None, "int8-union needs what `union_shapes` says"
            unite, union = before
            shared = self._shared(unite, union, shape, inputs, arguments, paths, unions)
            forced, counts = max(paths.forced - 1, -1), paths.counts if paths.counts is NULL else paths.counts[1:]
            arguments += [np.int32(forced), counts, unions.taken]
            return [*shared, KernelLaunch(kernel, grid, arguments, self._stream, dependent=self._programmatic)]
        if variant.kernel != "previous":
            arguments += [np.int32(paths.forced), paths.counts]
        if variant.kernel == WS:
            arguments.append(NULL)
        return [KernelLaunch(kernel, grid, arguments, self._stream)]

    def _shared(
        self,
        unite: Kernel,
        union: Kernel,
        shape: SparseShape,
        inputs: DeviceInputs,
        arguments: Sequence[Any],
        paths: Paths,
        unions: Unions,
    ) -> list[KernelLaunch]:
        """What `int8-union` does for rows that share candidates: it says in `taken` which these are."""
        rows, groups = np.int32(shape.rows), self._groups(union, shape)
        wanted_bytes = ceil_div(shape.context, 32) * unite.facts.constants["bytes_per_word"]
        smem_bytes = min(wanted_bytes, unite.dynamic_smem_bytes)  # of longer contexts nothing is shared
        lists = [inputs.selected, rows, np.int32(shape.context), np.int32(shape.candidates), unions.lists]
        rest = [np.int32(paths.forced), paths.counts, rows, unions.lists, unions.taken]
        return [
            KernelLaunch(unite, (groups, 1, 1), lists, self._stream, smem_bytes=smem_bytes),
            KernelLaunch(
                union, (groups, shape.kv_heads, 1), [*arguments, *rest], self._stream, dependent=self._programmatic
            ),
        ]

    @staticmethod
    def _groups(union: Kernel, shape: SparseShape) -> int:
        return ceil_div(shape.rows, union.facts.constants["rows"])

    def gather(self, shape: SparseShape, plan: SplitPlan, inputs: DeviceInputs) -> KernelLaunch:
        """The gather-only ceiling over the cell's K and V bytes."""
        kernel = self._kernels["gather_only"]
        self._refuse_unless(kernel, shape.head_size == kernel.facts.constants["head_size"], "head size 256", shape)
        arguments = (inputs.key, inputs.value, inputs.selected, np.int32(shape.context), np.int32(shape.candidates))
        return KernelLaunch(kernel, self._grid(kernel, shape, shape.kv_heads, plan.splits), arguments, self._stream)

    def copy(self, source: Device, target: Device) -> KernelLaunch:
        """The copy ceiling: source to target, both a multiple of 16 bytes long."""
        kernel = self._kernels["copy_only"]
        vectors = source.nbytes // 16
        grid = (ceil_div(vectors, kernel.facts.constants["tile"]), 1, 1)
        return KernelLaunch(kernel, grid, (source, target, np.int64(vectors)), self._stream)

    def _grouped(self, shape: SparseShape, plan: SplitPlan, inputs: DeviceInputs, workspace: Workspace) -> KernelLaunch:
        kernel = self._kernels["decode_grouped"]
        limit = kernel.facts.constants["max_head_size"]
        self._refuse_unless(kernel, shape.head_size <= limit, f"head sizes up to {limit}", shape)
        parts = ceil_div(shape.group, kernel.facts.constants["heads_per_cta"])
        sizes = (shape.context, shape.candidates, shape.group, shape.head_size)
        grid = self._grid(kernel, shape, shape.kv_heads * parts, plan.splits)
        return KernelLaunch(kernel, grid, self._attention_arguments(inputs, workspace, sizes), self._stream)

    def _int8_tc(
        self, shape: SparseShape, plan: SplitPlan, inputs: DeviceInputs, workspace: Workspace, paths: Paths
    ) -> KernelLaunch:
        kernel = self._kernels["decode_int8_tc"]
        self._refuse_beyond_tile(kernel, shape)
        self._refuse_beyond_bounds(kernel, shape, inputs.scale)
        sizes = (shape.context, shape.candidates, shape.group)
        grid = self._grid(kernel, shape, shape.kv_heads, plan.splits)
        arguments = [*self._attention_arguments(inputs, workspace, sizes), np.int32(paths.forced), paths.counts]
        return KernelLaunch(kernel, grid, arguments, self._stream)

    def _merge(self, shape: SparseShape, plan: SplitPlan, workspace: Workspace, out: Device) -> KernelLaunch:
        kernel = self._kernels["merge_partials"]
        grid = (shape.rows * shape.query_heads, ceil_div(shape.head_size, kernel.facts.constants["tile"]), 1)
        arguments = (
            workspace.acc, workspace.m, workspace.l, out, np.int32(plan.splits), np.int32(shape.head_size),
        )  # fmt: skip
        return KernelLaunch(kernel, grid, arguments, self._stream, dependent=self._programmatic)

    def _refuse_beyond_tile(self, kernel: Kernel, shape: SparseShape) -> None:
        group, head_size = kernel.facts.constants["max_group"], kernel.facts.constants["head_size"]
        self._refuse_unless(kernel, shape.head_size == head_size, f"head size {head_size}", shape)
        self._refuse_unless(kernel, shape.group <= group, f"up to {group} query heads per KV head", shape)

    def _refuse_beyond_bounds(self, kernel: Kernel, shape: SparseShape, scale: float) -> None:
        self._refuse_unless(kernel, 0.0 <= scale <= MAX_SCALE, f"softmax scales from 0 to {MAX_SCALE:g}", shape)
        self._refuse_unless(kernel, shape.candidates <= MAX_CANDIDATES, f"up to {MAX_CANDIDATES} candidates", shape)

    @staticmethod
    def _attention_arguments(inputs: DeviceInputs, workspace: Workspace, sizes: Sequence[int]) -> list[Any]:
        partials = (workspace.acc, workspace.m, workspace.l)
        return [*inputs.pointers, *partials, *map(np.int32, sizes), np.float32(inputs.scale)]

    def _grid(self, kernel: Kernel, shape: SparseShape, y: int, z: int) -> tuple[int, int, int]:
        self._refuse_unless(kernel, max(y, z) <= GRID_LIMIT_YZ, f"up to {GRID_LIMIT_YZ} KV heads or splits", shape)
        return shape.rows, y, z

    @staticmethod
    def _refuse_unless(kernel: Kernel, fits: bool, what: str, shape: SparseShape) -> None:
        if not fits:
            raise VariantRefused(f"{kernel.name} takes {what}, not {shape.key}")
