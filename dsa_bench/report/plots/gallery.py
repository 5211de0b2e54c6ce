# SPDX-License-Identifier: MIT
"""Every kind of picture, by name."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from dsa_bench.report.plots import decode_time, dense, drift, hyper, league, prefill, regret_map, split_choices
from dsa_bench.report.plots.canvas import picture, settle
from dsa_bench.report.plots.names import FORMATS, KINDS
from dsa_bench.report.plots.subject import NothingToDraw, Subject

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GALLERY: "dict[str, Callable[[Subject], Figure]]" = {
    "decode-time": decode_time.draw,
    "regret-map": regret_map.draw,
    "split-choices": split_choices.draw,
    "league": league.draw,
    "prefill": prefill.draw,
    "dense": dense.draw,
    "mix": hyper.draw_mix,
    "gate": hyper.draw_gate,
    "drift": drift.draw,
}


def pictures(
    subject: Subject, kinds: Iterable[str] = KINDS, formats: Iterable[str] = FORMATS
) -> tuple[dict[str, bytes], dict[str, str]]:
    """(file name ending -> its bytes, such as `decode-time.svg`; kind -> why the run has nothing for it).

    Inside `canvas.drawing` only.
    """
    made: dict[str, bytes] = {}
    lacking: dict[str, str] = {}
    for kind in kinds:
        try:
            figure = GALLERY[kind](subject)
        except NothingToDraw as reason:
            lacking[kind] = str(reason)
            continue
        settle(figure)
        made |= {f"{kind}.{format}": picture(figure, format) for format in FORMATS if format in formats}
    return made, lacking
