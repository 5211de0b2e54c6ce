# SPDX-License-Identifier: MIT
"""Options that take several values: `--rows 1 8`, `--rows 1,8` and `--rows 1 --rows 8` mean the same."""

import re
from typing import Any

import typer
from typer.core import TyperCommand

VALUE = re.compile(r"(?!-)|-[\d.]|-$", re.ASCII)
"""A token that is a value and not an option: no dash first, or a dash and a number (a bad value, reported as one)."""


class ListCommand(TyperCommand):
    """Gives every value up to the next option to the list option before it, and refuses a second one of another."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._spread(ctx, args))

    def _spread(self, ctx: Any, args: list[str]) -> list[str]:
        flags = {flag for option in self.params if getattr(option, "multiple", False) for flag in option.opts}
        single = self._single_flags()
        spread: list[str] = []
        rest = list(args)
        while rest:
            token = rest.pop(0)
            if token == "--":
                return [*spread, token, *rest]
            if token in single and len(rest) > 1 and VALUE.match(rest[1]) and not ctx.resilient_parsing:
                raise typer.BadParameter(f"{token}: takes one value, and two were given: {rest[0]} {rest[1]}; name one")
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

    def _single_flags(self) -> set[str]:
        """Options of one value, in a command where what stands behind that value can be no argument."""
        if any(param.param_type_name == "argument" for param in self.params):
            return set()
        return {
            flag
            for option in self.params
            if not (getattr(option, "multiple", False) or getattr(option, "is_flag", False))
            for flag in option.opts
        }
