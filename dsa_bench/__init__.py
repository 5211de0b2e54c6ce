# SPDX-License-Identifier: MIT
"""Measure, tune and dispatch INT8-KV sparse attention on NVIDIA GPUs."""

__version__ = "0.1.0"
