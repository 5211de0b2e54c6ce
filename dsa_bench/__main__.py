# SPDX-License-Identifier: MIT
"""The `dsa-bench` command; `python -m dsa_bench` is the same, also from an uninstalled source tree."""

import sys


def main() -> None:
    """Run the command. An interrupt while its modules load ends it as one later does."""
    try:
        from dsa_bench.cli.main import main as command

        command()
    except KeyboardInterrupt:
        print("dsa-bench: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
