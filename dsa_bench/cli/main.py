# SPDX-License-Identifier: MIT
"""The `dsa-bench` command: its commands, and how every failure becomes one line and an exit code."""

import errno
import sys
from typing import Annotated, Any

import typer

from dsa_bench import __version__
from dsa_bench.cli.ab import ab
from dsa_bench.cli.check import check
from dsa_bench.cli.compare import compare
from dsa_bench.cli.console import emit, note, prepare_streams
from dsa_bench.cli.decode import decode
from dsa_bench.cli.dense import dense
from dsa_bench.cli.env import env
from dsa_bench.cli.gate import gate
from dsa_bench.cli.kernels import kernels
from dsa_bench.cli.lists import ListCommand
from dsa_bench.cli.map import map_app
from dsa_bench.cli.mix import mix
from dsa_bench.cli.plot import plot
from dsa_bench.cli.prefill import prefill
from dsa_bench.cli.regret import regret
from dsa_bench.cli.report import report
from dsa_bench.cli.rule import rule
from dsa_bench.cli.run import run_sweep
from dsa_bench.cli.tune import tune
from dsa_bench.model.errors import BadInput, CannotMeasure, DsaBenchError

INTERRUPTED = 130

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
for command in (decode, prefill, dense, mix, gate, tune, report, plot, regret, compare, ab, check, kernels, env):
    app.command(cls=ListCommand)(command)
app.command("run", cls=ListCommand)(run_sweep)
app.add_typer(rule, name="rule")
app.add_typer(map_app, name="map")


def _version(asked: bool) -> None:
    if asked:
        emit(f"dsa-bench {__version__}")
        raise typer.Exit


@app.callback()
def dsa_bench(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Measure and check INT8-KV sparse attention on NVIDIA GPUs.

    DSA_BENCH_<NAME> sets a value option of decode, prefill, dense, mix or gate, or a list option of any command;
    --rows 1 8, --rows 1,8 and --rows 1 --rows 8 are the same.
    """


def main() -> None:
    """Run a command and leave with its exit code: 0 fine, 1 a gate said no, 2 bad usage, 3 cannot measure here."""
    prepare_streams()
    sys.exit(run(sys.argv[1:]))


def run(argv: list[str]) -> int:
    """Run one command line in this process; the exit code."""
    try:
        result: Any = app(argv or ["--help"], prog_name="dsa-bench", standalone_mode=False)
    except DsaBenchError as error:
        note(f"error: {error}")
        return error.exit_code
    except MemoryError as error:
        note(f"error: not enough memory ({error}); ask for less --context, --rows or --candidates")
        return CannotMeasure.exit_code
    except SystemExit as left:
        if not isinstance(left.__context__, BrokenPipeError):
            raise
        return 0  # whoever read the help closed early
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EIO) and error.filename is None:
            note(f"error: stdout: cannot be written ({error.strerror}); send the result elsewhere")
            return CannotMeasure.exit_code
        if error.strerror is None:
            raise
        note(f"error: {error.filename or 'the current folder'}: cannot be used ({error.strerror}); name another")
        return BadInput.exit_code
    except (KeyboardInterrupt, typer.Abort):
        note("interrupted")
        return INTERRUPTED
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        note(f"error: {usage_message(error)}")
        return 2
    if result == INTERRUPTED:  # newer option parsers turn Ctrl-C into this
        note("interrupted")
    return result if isinstance(result, int) else 0


def usage_message(error: Any) -> str:
    """One line for a usage error of the option parser, naming the variable where the value came from one."""
    option, context = getattr(error, "param", None), getattr(error, "ctx", None)
    message = getattr(error, "message", None)
    if option is None or context is None or not message:
        return str(error.format_message()).replace("Error: ", "")
    source = context.get_parameter_source(option.name)
    from_environment = source is not None and source.name == "ENVIRONMENT"
    name = max(option.opts, key=len)
    return f"{name}{f' (from {option.envvar})' if from_environment else ''}: {message}"
