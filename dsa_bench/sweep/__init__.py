# SPDX-License-Identifier: MIT
"""Options and files in, cells measured, records out."""
