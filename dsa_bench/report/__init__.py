# SPDX-License-Identifier: MIT
"""Records in; tables and words out. Never measures; the same run always gives the same text."""
