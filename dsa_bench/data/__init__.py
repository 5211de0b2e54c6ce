# SPDX-License-Identifier: MIT
"""Inputs of the operators: synthetic, the same bytes on every backend."""
