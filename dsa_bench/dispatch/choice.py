# SPDX-License-Identifier: MIT
"""What a call gets, and how that is known: kernel, splits, and the basis of the splits.

It depends on the call's sizes, its scale, its addresses and the device, never on a tensor's values, so that an eager
and a captured launch agree.
"""

from dataclasses import dataclass, replace
from typing import Literal

from dsa_bench.dispatch.facts import Host, launch_facts
from dsa_bench.dispatch.gates import DECODE_ROWS, CallFacts, Gate, KernelName, choose_kernel
from dsa_bench.dispatch.options import DispatchOptions, Setting
from dsa_bench.dispatch.target import FoundTarget, LookUp, find_target
from dsa_bench.model.plan import SplitPlan, VariantPlan
from dsa_bench.model.request import DIGITS, UNION, WS
from dsa_bench.model.shape import Op, SparseShape
from dsa_bench.model.text import printable
from dsa_bench.splits.geometry import AUTOMATIC, unsplit_plan
from dsa_bench.splits.kernels import INT8_TC, TUNED_KERNELS

Basis = Literal["option", "map", "rule"]
MEASURED_AS: dict[KernelName, tuple[Op, str]] = {
    "int8-digits decode": ("decode", DIGITS),
    "int8-tc decode": ("decode", INT8_TC),
    "decode_grouped": ("decode", "previous"),
    "int8-union prefill": ("prefill", UNION),
    "int8-ws prefill": ("prefill", WS),
    "int8-tc prefill": ("prefill", "int8-tc"),
    "bf16 prefill": ("prefill", "previous"),
}
"""Operator and name under which each kernel is measured and recorded."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The launch of one call.

    shape, variant  as the kernel is measured; None if there is nothing to launch
    basis           who set the splits: the knob, the map, or the kernel's own rule
    why             the same in words      found  what the map said
    """

    kernel: KernelName
    gates: tuple[Gate, ...]
    settings: tuple[Setting, ...]
    shape: SparseShape | None
    variant: VariantPlan | None
    basis: Basis
    why: str
    found: str

    @property
    def plan(self) -> SplitPlan:
        """How each row's tiles are shared out; no tiles and no splits if there is nothing to launch."""
        return SplitPlan(0, 0) if self.variant is None else self.variant.split

    @property
    def refusals(self) -> tuple[Gate, ...]:
        """The gates that said no, of the kernels that were asked before the one that is taken."""
        return tuple(gate for gate in self.gates if not gate.passed)

    def explain(self, *, passed: bool = False) -> list[str]:
        """One line for the launch, then each kernel that was refused and why, the splits, the map and the options.

        passed  whether gates that said yes have their lines too
        """
        splits = f"{self.plan.splits} split{'s' if self.plan.splits > 1 else ''}"
        launch = (
            ""
            if self.variant is None
            else f", {splits} of at most {self.plan.tiles_per_split} tiles, {self.variant.ctas} CTAs"
        )
        lines = [f"{self.kernel}{launch}, by {self.basis}: {self.why}"]
        for gate in self.gates:
            if passed or not gate.passed:
                lines.append(f"  {gate.kernel} {'passes' if gate.passed else 'refused by'} {gate}")
        return [*lines, f"  {printable(self.found)}", f"  options: {', '.join(map(str, self.settings))}"]


def choose(
    call: CallFacts, context: int, options: DispatchOptions, host: Host, look_up: LookUp, l2: str = "cold"
) -> Choice:
    """The kernel by its gates; the splits of `int8-tc decode` by the knob if positive, else the map, else seed_wave;
    those of `int8-digits decode` by the map, else digit_splits.

    context  capacity of the cache      l2  the mode that a map's table must have been tuned for

    Raises what choose_kernel does.
    """
    preferred = _preferred(call, context, options, host, look_up, l2)
    call = replace(call, context=context, sms=0 if host.device.backend == "cpu" else host.device.sm_count)
    gated = choose_kernel(call if preferred is None else replace(call, preferred=preferred.target.kernel), options)
    if gated.kernel == "none":
        nothing = "no rows, heads or candidates"
        return Choice("none", gated.gates, options.settings, None, None, "rule", nothing, "map: not asked")
    op, kernel = MEASURED_AS[gated.kernel]
    shape = SparseShape(call.rows, context, call.candidates, call.query_heads, call.kv_heads, call.head_size, op)
    basis, found = "rule", "map: not asked, this kernel takes no tiles per split"
    if op == "prefill":
        variant, why = unsplit_plan(kernel, shape), "one CTA per row and KV head, unsplit"
        if kernel == UNION and call.site is not None:  # on the CPU rows share nothing
            why = f"four rows in one CTA per KV head where their lists are alike, else {why}"
    elif kernel == "previous":
        variant, why = host.geometry.plan(kernel, shape, None), host.geometry.why(kernel, shape, None)
    elif kernel == DIGITS:
        assert preferred is not None, "its gates ask for it"
        variant, found = host.geometry.plan(kernel, shape, preferred.target.value), preferred.found
        basis, why = "map", f"{preferred.target.value} tiles per split tuned"
        if not preferred.by_map:
            basis, why = "rule", f"measured to be faster here; {host.geometry.why(kernel, shape, AUTOMATIC)}"
    else:
        asked, basis, why, found = _tiles_per_split(shape, options, host, look_up, l2)
        variant = host.geometry.plan(kernel, shape, asked)
    return Choice(gated.kernel, gated.gates, options.settings, shape, variant, basis, why, found)


def _preferred(
    call: CallFacts, context: int, options: DispatchOptions, host: Host, look_up: LookUp, l2: str
) -> FoundTarget | None:
    """What the map, or without a rule the automatic choice, gives a decode call; None where only one kernel is on."""
    sizes = (call.candidates, call.query_heads, call.kv_heads, call.head_size)
    switches = options.decode_int8_tc.value and options.decode_int8_digits.value
    if not switches or not all(sizes) or not 1 <= call.rows <= DECODE_ROWS:
        return None
    shape = SparseShape(call.rows, context, *sizes, "decode")

    def of_map(kernel: str) -> tuple[int | None, str]:
        return look_up(launch_facts(host, kernel, shape, l2), shape.rows, shape.tiles)

    return find_target(of_map, shape, TUNED_KERNELS, host.device.compute_capability)


def _tiles_per_split(
    shape: SparseShape, options: DispatchOptions, host: Host, look_up: LookUp, l2: str
) -> tuple[int, Basis, str, str]:
    knob = options.tiles_per_split
    if knob.value > 0:
        return knob.value, "option", f"{knob.value} tiles per split asked", "map: not asked, the knob is set"
    tuned, found = look_up(launch_facts(host, "int8-tc", shape, l2), shape.rows, shape.tiles)
    if tuned is not None:
        return tuned, "map", f"{tuned} tiles per split tuned", found
    return AUTOMATIC, "rule", host.geometry.why("int8-tc", shape, AUTOMATIC), found
