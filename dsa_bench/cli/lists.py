# SPDX-License-Identifier: MIT
"""Options that take several values: `--rows 1 8`, `--rows 1,8` and `--rows 1 --rows 8` mean the same."""

import re
from typing import Any

import typer
from typer.core import TyperCommand

VALUE = re.compile(r"(?!-)|-[\d.]|-$", re.ASCII)
"""A token that is a value and not an option: no dash first, or a dash and a number (a bad value, reported as one)."""


class ListCommand(TyperCommand):
    """Gives every value up to the next option to the list option before it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._spread(ctx, args))

    def _spread(self, ctx: Any, args: list[str]) -> list[str]:
        flags = {flag for option in self.params if getattr(option, "multiple", False) for flag in option.opts}
        spread: list[str] = []
        rest = list(args)
        while rest:
            token = rest.pop(0)
            if token == "--":
                return [*spread, token, *rest]
            if token not in flags:
                spread.append(token)
                continue
            values: list[str] = []
            while rest and VALUE.match(rest[0]):
                values.append(rest.pop(0))
            if not values and not ctx.resilient_parsing:
                raise typer.BadParameter(f"{token}: needs at least one value")
            for value in values:
                spread += [token, value]
        return spread
