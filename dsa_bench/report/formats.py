# SPDX-License-Identifier: MIT
"""Names of the output formats, apart from the code that writes them, so that parsing options loads none of it."""

MACHINE_FORMATS = ("json", "jsonl", "csv", "markdown")
FORMATS = ("table", *MACHINE_FORMATS)
