# SPDX-License-Identifier: MIT
"""The failures a user can expect: one line on stderr (what was asked, the limit, what to do) and an exit code."""

from dsa_bench.model.text import printable


class DsaBenchError(Exception):
    """An expected failure: one printable line, whatever it quotes. Anything else that escapes is a bug and keeps its
    traceback."""

    exit_code = 1

    def __str__(self) -> str:
        return printable(super().__str__())


class GateFailed(DsaBenchError):
    """A gate said no: a regression, a regret above its limit, a variant with a wrong result."""

    exit_code = 1


class BadInput(DsaBenchError):
    """The request or a file it names cannot be used."""

    exit_code = 2


class CannotMeasure(DsaBenchError):
    """This machine cannot take the measurement: no device, a compile or driver error, a run that cannot be trusted."""

    exit_code = 3


class OutOfDeviceMemory(CannotMeasure):
    """An allocation that the device has no room for."""


class VariantRefused(CannotMeasure):
    """One variant cannot be launched for a shape; the others can."""


class NothingRecorded(CannotMeasure):
    """The profiler saw no device event of a visit: of the kernels of some libraries CUPTI records none."""


class CompileFailed(CannotMeasure):
    """A kernel did not compile, or compiled to something that may not be measured."""


class BadOption(BadInput):
    """An option of the dispatcher, or the environment variable beside it, holds what its grammar does not have."""


class Unsupported(BadInput):
    """No kernel here computes what a call asks for."""


class WorkspaceTooSmall(BadInput):
    """A caller's workspace does not hold the partials of its call."""
