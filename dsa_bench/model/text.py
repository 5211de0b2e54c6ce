# SPDX-License-Identifier: MIT
"""Other people's text and values as a message quotes them: on one line, printable, of a readable length."""

LONGEST_QUOTE = 60
"""Characters of a value that a message quotes."""


def printable(text: str) -> str:
    """Text with its control characters escaped, line breaks too, so that none reaches a terminal or a shell."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def short(value: object) -> str:
    """A value's own text, printable and cut to LONGEST_QUOTE."""
    return _cut(printable(str(value)))


def quoted(value: object) -> str:
    """A value's repr, printable and cut to LONGEST_QUOTE; its type where it has none."""
    try:
        text = repr(value)
    except Exception:  # an integer of thousands of digits, a list too deep, an object that is damaged
        text = f"a value of type {type(value).__name__}"
    return _cut(printable(text))


def first_line(error: Exception) -> str:
    """The first line of what an error says, or its type where it says nothing."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 3] + "..."
