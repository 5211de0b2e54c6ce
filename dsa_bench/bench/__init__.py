# SPDX-License-Identifier: MIT
"""Timers and rounds: variants in, raw visits out. Knows no operator and computes no statistic."""
