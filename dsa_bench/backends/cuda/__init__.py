# SPDX-License-Identifier: MIT
"""The GPU backend: typed launch wrappers over kernels/."""
