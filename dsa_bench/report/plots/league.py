# SPDX-License-Identifier: MIT
"""The split rules' league: regret over the shapes that all of them share."""

from typing import TYPE_CHECKING

from dsa_bench.report.plots.canvas import COLORS, legend_below, new_figure
from dsa_bench.report.plots.subject import NothingToDraw, Subject
from dsa_bench.report.regret import Standing, league, score, shapes
from dsa_bench.splits.registry import RULE_NAMES
from dsa_bench.stats.regret import Overall

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def standings(subject: Subject) -> tuple[list[Standing], int]:
    """(the rules that can be scored, the least mean first; over how many shapes)."""
    table, shared = league(score(subject.choices, RULE_NAMES, subject.slots, None))
    return [one for one in table if one.total is not None], shared


def draw(subject: Subject) -> "Figure":
    """A line for each rule."""
    table, shared = standings(subject)
    totals: list[tuple[str, Overall]] = [(one.rule, one.total) for one in table if one.total is not None]
    if len(totals) < 2:
        raise NothingToDraw("fewer than two split rules can be scored; measure their launches with --rules")
    figure = new_figure(
        f"Regret of split rules over {shapes(shared)} that all of them share", subject.about(), 1.7 + 0.32 * len(totals)
    )
    ax = figure.subplots()
    for line, (_, total) in enumerate(totals):
        mean = 100 * total.mean
        if total.low is not None and total.high is not None:
            ends = [[mean - 100 * total.low], [100 * total.high - mean]]
            ax.errorbar([mean], [line], xerr=ends, color=COLORS[0], capsize=3, linewidth=1.6, zorder=2)
        ax.plot([mean, 100 * total.maximum], [line, line], color="#d0d0d0", linewidth=1.2, zorder=1)
    for label, marker, color, hollow, of in (
        ("mean, 95 % interval", "o", COLORS[0], False, _mean),
        ("95th percentile", "D", COLORS[4], False, _percentile),
        ("maximum", "s", COLORS[1], False, _maximum),
        ("naive mean (biased upwards)", "o", COLORS[0], True, _naive),
    ):
        known = [(100 * value, line) for line, (_, total) in enumerate(totals) if (value := of(total)) is not None]
        if known:
            ax.plot(
                *zip(*known, strict=True), linestyle="none", marker=marker, color=color, markersize=9 if hollow else 6,
                markerfacecolor="none" if hollow else color, label=label, zorder=3,
            )  # fmt: skip
    ax.set_yticks(range(len(totals)), [rule for rule, _ in totals])
    ax.set_ylim(len(totals) - 0.5, -0.5)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.set_xlabel("regret (%)")
    legend_below(figure, [ax])
    return figure


def _mean(total: Overall) -> float:
    return total.mean


def _percentile(total: Overall) -> float | None:
    return total.percentile_95


def _maximum(total: Overall) -> float:
    return total.maximum


def _naive(total: Overall) -> float:
    return total.naive_mean
