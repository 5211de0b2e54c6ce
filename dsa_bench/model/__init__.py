# SPDX-License-Identifier: MIT
"""Shapes, plans, device facts and records: frozen dataclasses that every layer shares and that import nothing."""
