# SPDX-License-Identifier: MIT
"""The embedded default: NumPy on a pool of workers, with real splits and real times."""
