# SPDX-License-Identifier: MIT
"""The launches that a cell measures: the kernels asked for, or with `--option` what the dispatcher takes."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dsa_bench.backends.base import Backend
from dsa_bench.data.files import cell_inputs
from dsa_bench.dispatch.choice import Choice, choose
from dsa_bench.dispatch.dispatcher import ALIGNED
from dsa_bench.dispatch.facts import Host
from dsa_bench.dispatch.gates import DEVICE_FUNCTION, CallFacts
from dsa_bench.dispatch.look_up import LaunchFacts
from dsa_bench.dispatch.options import OPTIONS, DispatchOptions, Setting, Source, resolve_options
from dsa_bench.dispatch.target import LookUp
from dsa_bench.dispatch.tuned import TunedMap
from dsa_bench.model.call import LaunchSite, LoadedKernel
from dsa_bench.model.device import DeviceFacts
from dsa_bench.model.errors import BadInput
from dsa_bench.model.inputs import DEFAULT_SCALE
from dsa_bench.model.plan import VariantPlan
from dsa_bench.model.request import CEILINGS, Side, SideOption, SparseRequest
from dsa_bench.model.shape import Op, SparseShape
from dsa_bench.splits.geometry import CudaSparse, SparseGeometry, effective_variants
from dsa_bench.splits.registry import named_rules


def sides_of(options: Iterable[tuple[str, str]]) -> tuple[Side, ...]:
    """One side for each combination of the values that the named options were given, in the order given.

    The environment and the defaults answer for the others. Raises BadOption.
    """
    values: dict[str, dict[str, None]] = {}
    for name, value in options:
        values.setdefault(name, {})[value] = None
    sides: list[Side] = []
    for combination in itertools.product(*values.values()):
        resolved = resolve_options(dict(zip(values, combination, strict=True)))
        sides.append(tuple(SideOption(one.option.name, one.value, one.source) for one in resolved.settings))
    return tuple(sides)


@dataclass(frozen=True, slots=True)
class _Planned:
    device: DeviceFacts
    geometry: SparseGeometry

    def kernel_hash(self, kernel: str) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the dispatcher would launch: what it has to know, the gates' facts if there is a GPU, and the tuned map."""

    host: Host
    site: LaunchSite | None
    look_up: LookUp

    @classmethod
    def of(cls, request: SparseRequest, backend: Backend, warn: Callable[[str], None] | None = None) -> "Place":
        """warn: is told what is wrong with the map, once in a process."""
        return cls(backend, _with_the_other_operator(backend.site()), _look_up(request, warn))

    @classmethod
    def planned(cls, request: SparseRequest, geometry: SparseGeometry) -> "Place":
        """A device of which no more than the geometry is known: the gates of its code pass, and no map is its.

        One whose clusters are known is an H200 (PLANNED_CLUSTERS), which decides the automatic kernel.
        """
        sms = geometry.slots.sms if isinstance(geometry, CudaSparse) else 0
        capability = "9.0" if isinstance(geometry, CudaSparse) and geometry.clusters else None
        device = DeviceFacts("planned", "a device that is planned for", sms, capability)
        return cls(_Planned(device, geometry), None, _no_look_up)


def _with_the_other_operator(site: LaunchSite | None) -> LaunchSite | None:
    """A backend loads the kernels of one operator, a dispatcher all: those of the other count as loaded."""
    if site is None:
        return None
    loaded = {function: LoadedKernel(site.sm, 0) for function in DEVICE_FUNCTION.values()}
    return replace(site, kernels={**loaded, **site.kernels})


def _no_look_up(facts: LaunchFacts, rows: int, tiles: int) -> tuple[int | None, str]:
    return None, "map: not asked, no device is known"


def _look_up(request: SparseRequest, warn: Callable[[str], None] | None) -> LookUp:
    file = None if request.splits is None else Path(request.splits.file)
    return TunedMap(file, strict=True, warn=warn).tiles_per_split


def cell_choices(request: SparseRequest, place: Place, shape: SparseShape) -> list[Choice]:
    """What the dispatcher takes in a cell, for each side.

    Raises BadInput if that is a kernel of another operator, Unsupported if it is none.
    """
    scale = DEFAULT_SCALE if request.data.source is None else cell_inputs(shape, request.data).scale
    sizes = (shape.rows, shape.candidates, shape.query_heads, shape.kv_heads, shape.head_size)
    facts = CallFacts(*sizes, scale, ALIGNED, place.site)
    choices: list[Choice] = []
    for side in request.sides:
        choice = choose(facts, shape.context, _options(side), place.host, place.look_up, request.policy.l2)
        if choice.shape is None or choice.shape.op != request.op:
            raise BadInput(
                f"--option {side_name(side)}: the dispatcher takes {choice.kernel} for {shape.key}, which "
                f"{request.op} does not measure ({_refused(choice, request.op)}); change the option or the shape "
                "(docs/dispatcher.md, Gates)"
            )
        choices.append(choice)
    return choices


def _refused(choice: Choice, op: Op) -> str:
    """Why no kernel of the operator took a call: by its sizes, or where all are switched off, by the options."""
    gates = [gate for gate in choice.refusals if gate.kernel.endswith(f" {op}")]
    switched_off = {gate.kernel for gate in gates if gate.name.startswith("ep.cuda.")}
    of_sizes = [gate for gate in gates if gate.kernel not in switched_off]
    return "; ".join(dict.fromkeys(map(str, of_sizes or gates)))


def cell_variants(request: SparseRequest, place: Place, shape: SparseShape) -> list[VariantPlan]:
    """Every distinct launch of a cell once, ceilings last."""
    geometry = place.host.geometry
    if not request.sides:
        rules = named_rules(request.rules, request.costs)
        asked = (request.measured_kernels, request.tiles_per_split)
        return effective_variants(geometry, shape, *asked, rules, request.tuned_target(shape))
    return side_variants(request, place, shape, cell_choices(request, place, shape))


def side_variants(
    request: SparseRequest, place: Place, shape: SparseShape, choices: Sequence[Choice]
) -> list[VariantPlan]:
    """Of a cell whose sides have these choices."""
    by_name: dict[str, VariantPlan] = {}
    for choice in choices:
        assert choice.variant is not None
        variant = choice.variant
        if (known := by_name.get(variant.name)) is not None:
            variant = replace(known, requested=tuple(dict.fromkeys((*known.requested, *variant.requested))))
        by_name[variant.name] = variant
    ceilings = effective_variants(place.host.geometry, shape, CEILINGS, ()) if request.ceiling else []
    return [*by_name.values(), *ceilings]


def explain_choices(request: SparseRequest, place: Place, shape: SparseShape) -> list[str]:
    """One line for the cell, then for each side what it asks for and all that its choice has to say."""
    lines = [f"rows {shape.rows}, context {shape.context}, candidates {shape.candidates}: {shape.tiles} tiles a row"]
    for side, choice in zip(request.sides, cell_choices(request, place, shape), strict=True):
        lines += [f"  {side_name(side)}", *(f"    {line}" for line in choice.explain())]
    return lines


def same_launches(request: SparseRequest, place: Place, shape: SparseShape) -> list[str]:
    """One line for each launch of a cell that several sides lead to, so that nobody reads a ratio of 1 into it."""
    names: dict[str, list[str]] = {}
    for side, choice in zip(request.sides, cell_choices(request, place, shape), strict=True):
        assert choice.variant is not None
        names.setdefault(choice.variant.name, []).append(side_name(side))
    return [
        f"{' and '.join(sides)} take the same launch, {name}, for rows {shape.rows}, context {shape.context}, "
        f"candidates {shape.candidates}: it is measured once"
        for name, sides in names.items()
        if len(sides) > 1
    ]


def side_name(side: Side) -> str:
    """The options that somebody set, as they are given."""
    return ",".join(f"{one.name}={one.value}" for one in side if one.source == "option")


def _options(side: Side) -> DispatchOptions:
    return DispatchOptions(*(Setting(OPTIONS[one.name], one.value, _source(one.source)) for one in side))


def _source(name: str) -> Source:
    return "option" if name == "option" else "environment" if name == "environment" else "default"
