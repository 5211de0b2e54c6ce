# SPDX-License-Identifier: MIT
"""Runs as one Markdown report: where they were taken, the seed's tables, how the numbers were taken, and their limits.

A pure function of the runs: the same records give the same bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dsa_bench.report import seed_tables
from dsa_bench.report.cells import untrusted_cells
from dsa_bench.report.columns import markdown
from dsa_bench.report.hosts import host_key, host_lines, host_names
from dsa_bench.report.recorded import Recorded, command, link, plain
from dsa_bench.report.render import to_markdown


@dataclass(frozen=True, slots=True)
class Section:
    """Runs that stand together, as the files of one folder do.

    title   None for runs that were named one by one      about  Markdown that the folder holds about itself
    others  (name, link) of files that are no records and are not made from one
    """

    title: str | None
    runs: Sequence[Recorded]
    about: str = ""
    others: Sequence[tuple[str, str]] = field(default=())


SEED_TABLES = (
    ("Decode", seed_tables.decode_table),
    ("Decode time against tiles per split, 8 rows", seed_tables.tiles_table),
    ("Prefill", seed_tables.prefill_table),
    ("Data that leave the fast path", seed_tables.fallback_table),
    ("Regret of split rules", seed_tables.regret_table),
    ("Dense decode", seed_tables.dense_table),
    ("PreMix and ScaledSilu", seed_tables.mix_table),
    ("gate-mul and the down projection behind it", seed_tables.gate_table),
)
HOW = (
    "- Each variant first runs once, into an output full of poison, on the inputs that are timed; only one that "
    "is within a derived bound of an FP64 reference gets a time.",
    "- **time**: median over rounds of one number a round, itself the median of that visit's launches. Rounds "
    "come in mirrored pairs of orders whose first place rotates.",
    "- **cupti** reads the GPU's records of the attention kernels; **events** times a graph of many launches, "
    "gaps included; **wall** is the CPU backend's clock.",
    "- **warm** launches read the same buffers every time; **cold** ones rotate through so many copies that twice"
    " the L2 is read in between.",
    "- **speedup**: time of `previous`, of the branchy sigmoid, of the plain launch or of dense decode's monolithic "
    "one / time of this, Hodges-Lehmann over rounds that hold both, with an exact interval of at least 95 %; "
    "**regret** is cross-fitted, the naive one beside it is biased upwards.",
    "- **null control**: one variant visited twice a round, against itself; a cell in which they clearly differ "
    "is named below.",
)
SEED = (
    "dsa-bench restates the kernels and measurements of two documents, 000 (sparse attention and the hyper-connection "
    "kernels) and 004 (dense decode). These tables have the form of theirs and hold the runs above; only a column that "
    "begins with `document:` is what 000 publishes."
)
LIMITS = (
    "- Times of different runs were not taken in the same rounds: only a ratio inside one line is paired. For two"
    " runs there is `dsa-bench compare`, which treats them as independent samples.",
    "- They hold for the GPU, driver, clocks and kernels above, and for synthetic data unless a command names "
    "real tensors; nothing here is a whole model's time.",
    "- A document column is what seed document 000 publishes for its own kernels, measured by its own script on "
    "another H200: it shows the size of things, and no ratio across it was measured.",
    "- `dense` is another computation, over every earlier position, and `gather` and `copy` compute nothing: "
    "neither is a candidate.",
    "- An interval is about these rounds on this machine, not about other machines or days; without 6 rounds "
    "there is none.",
)


def joined_report(title: str, sections: Sequence[Section], *, whole_tables: bool) -> str:
    """whole_tables: every line of every run at the end, too."""
    runs = [one for section in sections for one in section.runs]
    parts = [f"# {title}", "Made by `dsa-bench report` from the records that it names: change those, not this page."]
    parts += ["## Hosts", "\n".join(host_lines(runs)) or "None."]
    parts += ["## Records", *(part for section in sections for part in _section(section, host_names(runs)))]
    made = [(heading, table) for heading, of in SEED_TABLES if (table := of(runs)) is not None]
    if made:
        parts += ["## The seed documents' tables", SEED]
        parts += [part for heading, table in made for part in (f"### {heading}", table)]
    parts += [
        "## How each number was taken",
        "\n".join(HOW),
        "## What this cannot show",
        "\n".join([*LIMITS, *_particulars(runs)]),
    ]
    if whole_tables:
        parts += ["## Whole tables", *(part for one in runs for part in _whole(one))]
    return "\n\n".join(parts)


def _section(section: Section, hosts: dict[tuple[tuple[str, str], ...], str]) -> list[str]:
    parts = [] if section.title is None else [f"### {plain(section.title)}"]
    parts += [section.about.strip()] if section.about.strip() else []
    if section.runs:
        columns = ("record", "host", "taken", "commit", "timer, L2", "rounds", "cells", "command", "made from it")
        rows = [[link(one.name, one.link), hosts[host_key(one.run.header)], *_facts(one)] for one in section.runs]
        parts.append(markdown(columns, rows, (*columns,)))
    if section.others:
        parts.append("Other files: " + ", ".join(link(name, target) for name, target in section.others))
    return parts


def _facts(one: Recorded) -> list[str]:
    header = one.run.header
    modes = sorted({f"{table.timer}, {table.l2}" for table in one.tables if table.timer})
    rounds = sorted({table.rounds for table in one.tables})
    commit = "-" if header.commit is None else header.commit[:7] + (", changed" if header.dirty else "")
    made = ([link("table", one.table)] if one.table else []) + [link(kind, target) for kind, target in one.plots]
    return [
        header.created,
        commit,
        " / ".join(modes) or "-",
        "-" if not rounds else str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}",
        str(len(one.tables)),
        command(one.run),
        ", ".join(made) or "-",
    ]


def _particulars(runs: Sequence[Recorded]) -> list[str]:
    """What is wrong with these runs in particular: a line for each kind that occurs."""
    lines: list[str] = []
    hosts = {host_key(one.run.header) for one in runs}
    if len(hosts) > 1:
        lines.append(
            f"- The runs were taken on {len(hosts)} different hosts; figures of one say nothing about another."
        )
    for one in runs:
        where = link(one.name, one.link)
        if not one.is_measured:
            lines.append(f"- {where}: no cell was measured.")
        untrusted = ", ".join(table.label for table in untrusted_cells(list(one.tables)))
        if untrusted:
            lines.append(f"- {where}: the null control was off in {plain(untrusted)}; do not trust it.")
        if one.run.header.dirty:
            lines.append(f"- {where}: its source tree held changes that were not committed.")
        failed = [(table, row) for table in one.tables for row in table.rows if row.time_us is None]
        lines += [
            f"- {where}: {plain(row.check.variant)} has no time in {plain(table.label)}: "
            f"{plain(row.status.replace('_', ' '))}{f': {plain(row.reason)}' if row.reason else ''}."
            for table, row in failed
        ]
        if one.is_measured and not any(
            row.check.requested or table.op != "decode" for table in one.tables for row in table.rows
        ):
            lines.append(f"- {where}: the split kernel was not measured at any tiles per split, so there is no regret.")
    kernels: dict[str, set[str]] = {}
    for one in runs:
        op = str(one.run.header.plan.get("op"))
        for name, hash_ in one.run.header.kernel_hashes.items():
            kernels.setdefault(f"{op} {name}", set()).add(hash_)
    several = [name for name, hashes in sorted(kernels.items()) if len(hashes) > 1]
    if several:
        lines.append(
            f"- The runs hold different versions of {plain(', '.join(several))}: their times are not one kernel's."
        )
    return lines


def _whole(one: Recorded) -> list[str]:
    table = to_markdown(list(one.tables))
    return [f"### {plain(one.name)}", table or "No cell was measured."]
