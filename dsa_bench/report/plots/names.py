# SPDX-License-Identifier: MIT
"""Names of the pictures, apart from the code that draws them, so that parsing options loads none of it."""

from typing import Literal

PictureFormat = Literal["svg", "png"]
KINDS = ("decode-time", "regret-map", "split-choices", "league", "prefill", "dense", "mix", "gate", "drift")
FORMATS: tuple[PictureFormat, ...] = ("svg", "png")
