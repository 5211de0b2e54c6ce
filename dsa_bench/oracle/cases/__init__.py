# SPDX-License-Identifier: MIT
"""Named inputs at which attention arithmetic goes wrong, and what a kernel must give there."""
