# SPDX-License-Identifier: MIT
"""What a kernel must compute: the FP64 reference and the tolerances derived for it."""
