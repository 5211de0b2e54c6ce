# SPDX-License-Identifier: MIT
"""Where kernels run: `cpu` (NumPy) and `cuda` (launch wrappers over kernels/), behind one small interface."""
