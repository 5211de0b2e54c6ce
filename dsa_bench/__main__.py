# SPDX-License-Identifier: MIT
"""`python -m dsa_bench` is the `dsa-bench` command, also from an uninstalled source tree."""

from dsa_bench.cli.main import main

if __name__ == "__main__":
    main()
