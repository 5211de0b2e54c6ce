# SPDX-License-Identifier: MIT
"""Pure estimators over paired rounds: where two times stand to each other, how surely, and what may be said of it."""
