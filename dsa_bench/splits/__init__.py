# SPDX-License-Identifier: MIT
"""Split rules and the geometry they lead to: pure functions, no device query."""
