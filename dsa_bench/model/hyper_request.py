# SPDX-License-Identifier: MIT
"""What a user asked of `mix` or `gate`, validated, before any device is known; and what a check of them found."""

from dataclasses import dataclass, field, replace
from typing import Literal

from dsa_bench.model.errors import BadInput
from dsa_bench.model.hyper import LAUNCH_MODES, SIGMOIDS, GateShape, HyperOp, LaunchMode, MixShape, Sigmoid
from dsa_bench.model.request import Policy

MixKernel = Literal["pre-mix", "scaled-silu"]
MIX_KERNELS: tuple[MixKernel, ...] = ("pre-mix", "scaled-silu")
PAIR = "gate-mul+down"
COPY = "copy"
COPY_READS: dict[MixKernel, tuple[int, ...]] = {"pre-mix": (1, 8), "scaled-silu": (1,)}
"""Vectors that copies of a kernel's bytes read for each one that they write: as a plain copy, and as the kernel."""


@dataclass(frozen=True, slots=True)
class MixVariant:
    """One kernel of `mix` with one of the sigmoids."""

    kernel: MixKernel
    form: Sigmoid

    @property
    def name(self) -> str:
        """The variant's name in records, and its kernel's."""
        return f"{self.kernel}/{self.form}"


@dataclass(frozen=True, slots=True)
class GateVariant:
    """Gate-mul and its successor, launched in one of the modes."""

    mode: LaunchMode

    @property
    def name(self) -> str:
        """See MixVariant."""
        return f"{PAIR}/{self.mode}"


@dataclass(frozen=True, slots=True)
class CopyVariant:
    """A copy that moves as many bytes as one of the kernels of `mix`: `reads` vectors for each one written."""

    kernel: MixKernel
    reads: int = 1

    @property
    def name(self) -> str:
        """See MixVariant."""
        plain = f"{COPY}/{self.kernel}"
        return plain if self.reads == 1 else f"{plain}/{self.reads}-to-1"


HyperVariant = MixVariant | GateVariant | CopyVariant
HyperShape = MixShape | GateShape


@dataclass(frozen=True, slots=True)
class HyperRequest:
    """Cells of `mix` or of `gate`, and what is measured in each.

    kernels  of `mix`; `gate` has the pair alone
    ceiling  adds copies of each kernel's bytes to `mix`; None: if the device turns out to be a GPU
    Raises BadInput for a timer that cannot time what was asked for.
    """

    shapes: tuple[HyperShape, ...]
    kernels: tuple[MixKernel, ...] = MIX_KERNELS
    seed: int = 0
    policy: Policy = field(default_factory=Policy)
    ceiling: bool | None = None

    def __post_init__(self) -> None:
        if self.op == "gate" and self.policy.timer == "cupti":
            raise BadInput(
                "--timer cupti: sums durations of kernels, and under programmatic dependent launch the second's holds "
                "its wait for the first; use --timer events, which times the pair"
            )

    @property
    def cell_keys(self) -> tuple[str, ...]:
        return tuple(shape.key for shape in self.shapes)

    @property
    def op(self) -> HyperOp:
        """The operator, the same in every cell."""
        return "mix" if isinstance(self.shapes[0], MixShape) else "gate"

    @property
    def variants(self) -> tuple[HyperVariant, ...]:
        """Of every cell, in order; what the others of a kernel are compared with comes first."""
        if self.op == "gate":
            return tuple(map(GateVariant, LAUNCH_MODES))
        measured = self.kernels if self.ceiling else ()
        copies = (CopyVariant(kernel, reads) for kernel in measured for reads in COPY_READS[kernel])
        return (*(MixVariant(kernel, form) for kernel in self.kernels for form in SIGMOIDS), *copies)

    def on(self, backend: str) -> "HyperRequest":
        """The request with what it leaves to the device decided. A copy bounds GPU kernels."""
        wanted = backend == "cuda" if self.ceiling is None else self.ceiling
        timer = "events" if self.op == "gate" and backend == "cuda" and self.policy.timer == "auto" else None
        policy = self.policy if timer is None else replace(self.policy, timer=timer)
        return replace(self, ceiling=wanted and self.op == "mix", policy=policy)
