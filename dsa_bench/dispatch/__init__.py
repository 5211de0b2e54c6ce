# SPDX-License-Identifier: MIT
"""Which kernel and which splits a call gets: the tuned map, its file and its look-up."""
