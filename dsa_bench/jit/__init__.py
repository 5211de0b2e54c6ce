# SPDX-License-Identifier: MIT
"""From kernels/*.cu to loaded modules: hash, compile, cache, read facts, load. `modules` is the front."""
