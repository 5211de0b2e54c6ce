# SPDX-License-Identifier: MIT
"""Pictures of recorded runs: pure functions of a run, drawn off screen. The only code that imports matplotlib."""
