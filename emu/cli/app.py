"""The command line: parses, calls :mod:`emu.bench`, and turns what comes back into an exit code.

Exit codes: 0 ok, 1 the run failed, 2 usage or configuration, 3 wrong results, 4 average bandwidth below NCCL_TESTS_MIN_BW,
5 fidelity lost with --strict, 130 interrupted.  Data goes to stdout, messages and progress to stderr.  What a command needs is
imported when it runs, so that ``emu --help`` is quick.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer
from typer.exceptions import TyperException

from emu import __version__
from emu.cli import bench, diagnose, explain, fault, testbed, validation, view
from emu.errors import ConfigError, EmuError

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130

app = typer.Typer(
    name="emu",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"emu {__version__}")
        raise typer.Exit


@app.callback()
def root(
    show_version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True)] = False,
) -> None:
    """A distributed emulation testbed for the interconnects of AI accelerators.

    emu demo

    emu bench all_reduce --fabric dgx-h100-8 -b 8 -e 64M -f 8

    emu predict alltoall --fabric torus --set shape=4x4x4

    emu compare gather --fabric star --set ranks=8 --set rate=400Gbit/s
    """


bench.register(app)


@app.command()
def rerun(file: Annotated[Path, typer.Argument(help="Written by emu bench --run-file.")]) -> int:
    """Repeat a run from its run file and say whether the model times are the same."""
    from emu.bench.commands import rerun as run_again

    return run_again(file)


@app.command()
def fabrics(
    name: Annotated[
        str | None,
        typer.Argument(help="One to describe; switching for its keys; without it, all are listed."),
    ] = None,
    setting: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A topology's parameter.")] = None,
    draw: Annotated[
        Path | None, typer.Option("--draw", metavar="FILE", help="Draw it instead: a .png, or a .html to look into.")
    ] = None,
) -> int:
    """List the fabrics, describe one with the sources of its numbers, or draw it."""
    from emu.bench.catalogue import fabrics as show
    from emu.bench.options import parse_settings

    for option, given in (("--set", setting), ("--draw", draw)):
        if name is None and given:
            raise ConfigError(f"{option} needs the fabric that it is for: emu fabrics NAME {option} ...")
    return show(name, parse_settings(setting or ()), draw=draw)


@app.command()
def calibrate(
    address: Annotated[str | None, typer.Option("--address", help="The Ray cluster to calibrate.")] = None,
) -> int:
    """Measure what this host can carry, for --dilation auto; the result is kept."""
    from emu.bench.commands import calibrate as run_calibrate

    return run_calibrate(address=address)


@app.command()
def demo() -> int:
    """Ring against tree, and a switch against a torus, each read in one sentence."""
    from emu.bench.demo import demo as run_demo

    return run_demo()


for command_of in (explain.explain, testbed.up, testbed.status, testbed.down):
    app.command()(command_of)
diagnose.register(app)
app.add_typer(fault.app)
validation.register(app)
view.register(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; never raises for what a user may do, and never prints a traceback for it."""
    command = typer.main.get_command(app)
    _find_modules_here()
    signal.signal(signal.SIGTERM, _terminated)
    if sys.stderr is None:  # closed by who started this (2>&-): print would send messages to stdout
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # for as long as the process lives
    if sys.stdout is None:
        _complain("stdout is closed, and data goes there; redirect it to /dev/null instead")
        return EXIT_FAILED
    try:
        code = command.main(args=None if arguments is None else list(arguments), prog_name="emu", standalone_mode=False)
        sys.stdout.flush()
    except TyperException as error:
        text = _usage_mistake(error)
        if text.strip():
            context = getattr(error, "ctx", None)  # some have none
            _complain(f"{text} ({'emu' if context is None else context.command_path} --help)")
        return EXIT_USAGE
    except EmuError as error:
        _complain(str(error))
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        _complain("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read stdout has gone
        return EXIT_FAILED
    except OSError as error:
        _complain(str(error))
        return EXIT_FAILED
    if code == EXIT_INTERRUPTED:  # typer has caught the KeyboardInterrupt
        _complain("interrupted")
    return code if isinstance(code, int) else 0


def _find_modules_here() -> None:
    """Modules of the current folder can be named (``my_lab:build``); last, so that none stands in for one that is installed."""
    with contextlib.suppress(OSError):  # the folder may be gone
        here = os.getcwd()
        if here not in sys.path:
            sys.path.append(here)


def _usage_mistake(error: TyperException) -> str:
    """What typer found wrong, in emu's words; a value of the wrong type is named, with what it must be."""
    from pydantic import ValidationError  # typer has imported it by now

    cause = error.__cause__
    if isinstance(error, typer.BadParameter) and isinstance(cause, ValidationError) and error.param is not None:
        first = cause.errors(include_url=False)[0]
        wanted = {"int_parsing": "a whole number", "float_parsing": "a number"}.get(first["type"])
        if wanted is not None:
            return f"{error.param.opts[0]} {first['input']!r} must be {wanted}"
    if getattr(error, "option_name", "") == "--switching":  # which only compare has
        return f"{error.format_message()}; one fabric's is set by --set switching=NAME; emu compare --switching compares several"
    return error.format_message().replace("(Possible options: ", "(did you mean ")


def _terminated(number: int, frame: object) -> None:
    """SIGTERM ends a command as Ctrl-C does: what was started is ended, and the exit code is 130."""
    raise KeyboardInterrupt


def _complain(text: str) -> None:
    sys.stderr.write(f"emu: {text}\n")
