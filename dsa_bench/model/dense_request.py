# SPDX-License-Identifier: MIT
"""What a user asked of `dense`, validated, before any device is known."""

from dataclasses import dataclass, field, replace

from dsa_bench.model.dense import DENSE_KERNELS, LARGEST, DenseKernel, DensePlan, DenseShape
from dsa_bench.model.errors import BadInput
from dsa_bench.model.request import MapFile, Policy

COPY = "copy/kv"
"""A plain copy that reads and writes as many bytes as the live keys and values have."""
OFF, AUTO_RULE, FIXED = "off", "seed-adaptive", "fixed:256"
"""The monolithic launch; the rule that applies where no chunk is pinned; the one that it replaced (seed 004)."""
DEFAULT_RULES = (OFF, FIXED, AUTO_RULE, "adaptive", "live")
REACH = 4.34
"""Standard deviations within which drawn numbers lie (data/dense.py)."""


@dataclass(frozen=True, slots=True)
class DenseVariant:
    """One kernel with one geometry, and every rule that chooses it.

    requested  chunks as asked, 0 = the automatic rule
    rules      names of the rules, as asked
    """

    kernel: DenseKernel
    plan: DensePlan
    requested: tuple[int, ...]
    rules: tuple[str, ...]

    @property
    def name(self) -> str:
        """The variant's name in records: equal launches have equal names."""
        return f"{self.kernel}/{self.plan.name}"


@dataclass(frozen=True, slots=True)
class DenseRequest:
    """Cells of `dense`, and what is measured in each.

    rules    names of dense split rules (splits/dense.py), each measured with every kernel
    ceiling  adds a copy of the live bytes; None: if the device turns out to be a GPU
    splits   a tuned map, and `tuned` for each shape the chunk that it gives, 0 where it leaves it to the automatic
             rule; measured too, as the rule `map`; empty without a map
    Raises BadInput for queries that a type cannot hold.
    """

    shapes: tuple[DenseShape, ...]
    kernels: tuple[DenseKernel, ...] = DENSE_KERNELS
    rules: tuple[str, ...] = DEFAULT_RULES
    seed: int = 0
    query_std: float = 1.4
    policy: Policy = field(default_factory=Policy)
    ceiling: bool | None = None
    splits: MapFile | None = None
    tuned: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for shape in self.shapes:
            if self.query_std * REACH > LARGEST[shape.dtype]:
                most = LARGEST[shape.dtype] / REACH
                raise BadInput(
                    f"--query-std {self.query_std:g}: must be at most {most:.4g} with --dtype {shape.dtype}, which "
                    "holds no larger queries"
                )

    @property
    def cell_keys(self) -> tuple[str, ...]:
        return tuple(shape.key for shape in self.shapes)

    @property
    def op(self) -> str:
        """The operator, the same in every cell."""
        return "dense"

    def tuned_value(self, shape: DenseShape) -> int | None:
        """The map's chunk for one of the shapes; None without a map."""
        return self.tuned[self.shapes.index(shape)] if self.tuned else None

    def on(self, backend: str) -> "DenseRequest":
        """The request with what it leaves to the device decided. A copy bounds GPU kernels."""
        return replace(self, ceiling=backend == "cuda" if self.ceiling is None else self.ceiling)
