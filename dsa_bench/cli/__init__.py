# SPDX-License-Identifier: MIT
"""The command line: parse, call one function, print one result."""
