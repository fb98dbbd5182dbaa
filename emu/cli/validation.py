"""The commands about emu's numbers against real ones: validate, calibrate-fabric, tune."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from emu.cli.options import Ranks, Setting, fabric_option, nccl_option, output_option
from emu.errors import ConfigError

ENDPOINT_FABRIC = "h100-8-nccl"


def validate(
    fabric: Annotated[
        list[str] | None, fabric_option("--fabric", help="Only the measurements of this preset; repeat for more. Default: all.")
    ] = None,
    sizes: Annotated[bool, output_option("--sizes", help="Signed errors by size too.")] = False,
    shapes: Annotated[
        bool, output_option("--shapes", help="Instead: how figures change with nodes, algorithm and topology, measured and emu.")
    ] = False,
    emulate: Annotated[
        int | None, output_option("--emulate", metavar="N", help="Instead: N of the rows by the emulator, with verdicts.")
    ] = None,
    html: Annotated[
        Path | None, output_option("--html", help="Write curves, measured and emu, as a page; never overwrites.")
    ] = None,
    json: Annotated[Path | None, output_option("--json", "-J", help="Write every row; never overwrites.")] = None,
) -> int:
    """Run measured cases through the simulator and print how far emu is off, fitted rows apart from held-out ones.

    emu validate --sizes --html validate.html        emu validate --shapes        emu validate --emulate 6
    """
    from emu.validation.commands import validate as run_validate
    from emu.validation.commands import validate_emulated, validate_shapes

    instead = [flag for flag, given in (("--shapes", shapes), ("--emulate", emulate is not None)) if given]
    others = [flag for flag, given in (("--sizes", sizes), ("--html", html), ("--json", json)) if given]
    if instead and len(instead + others) > 1:
        raise ConfigError(f"{instead[0]} makes a table of its own; leave out {', '.join((instead + others)[1:])}")
    if shapes:
        return validate_shapes()
    if emulate is not None:
        return validate_emulated(fabric or (), emulate)
    return run_validate(fabric or (), sizes=sizes, html=html, json_path=json)


def calibrate_fabric(
    files: Annotated[list[Path], typer.Argument(help="nccl-tests' output: text, JSON (-J), or a .csv table.")],
    fabric: Annotated[str, fabric_option("--fabric", help="Preset or .toml file with an endpoint, to start from.")],
    collective: Annotated[str | None, nccl_option("--collective", help="What ran, where a file does not say.")] = None,
    ranks: Ranks = None,
    only: Annotated[str | None, fabric_option("--only", help="Only a table's rows that name this fabric.")] = None,
    fit: Annotated[list[str] | None, fabric_option("--fit", help="Fit to this collective only; repeat for more.")] = None,
    fit_ranks: Annotated[int | None, fabric_option("--fit-ranks", help="Fit to rows of so many ranks only.")] = None,
    output: Annotated[
        Path | None, output_option("--output", "-O", help="Write the fabric file here; never overwrites. Default: print it.")
    ] = None,
) -> int:
    """Fit an endpoint's parameters to what nccl-tests measured, to every second size; the rest says what they are worth.

    emu calibrate-fabric all_reduce.txt alltoall.json --fabric h100-8-nccl --output my-h100.toml
    """
    from emu.collectives.catalogue import collective_name
    from emu.validation.commands import calibrate_fabric as run_calibrate

    return run_calibrate(
        files,
        fabric=fabric,
        collective=None if collective is None else collective_name(collective),
        n_ranks=ranks,
        only=only,
        fit_collectives=[collective_name(name) for name in fit or ()],
        fit_ranks=fit_ranks,
        output=output,
    )


def tune(
    collective: Annotated[str, typer.Argument(help="all_reduce, all_gather, alltoall, broadcast, ...; not alltoallv, sendrecv.")],
    fabric: Annotated[str, fabric_option("--fabric", help="Preset or .toml file with an endpoint.")] = ENDPOINT_FABRIC,
    setting: Setting = None,
    ranks: Ranks = None,
    begin: Annotated[str, nccl_option("-b", "--minbytes", help="Smallest size; K, M, G are binary.")] = "512",
    end: Annotated[str, nccl_option("-e", "--maxbytes", help="Largest size.")] = "256M",
    factor: Annotated[float, nccl_option("-f", "--stepfactor", help="Factor between sizes.")] = 4,
) -> int:
    """What each tuner would take, algorithm and protocol, and its regret: its time over that of the best pair.

    NCCL's choice is also set against the best pair that its tuner knows ("of its own").

    NCCL's tuner here knows ring, tree, nvls, nvlstree and grouped sends and receives, not CollNet or PAT.

    emu tune all_reduce --fabric h100-8-nccl
    """
    from emu.bench.fabrics import prepare
    from emu.bench.options import BenchOptions, parse_settings, parse_size_bytes
    from emu.bench.sweep import sizes_bytes
    from emu.validation.commands import tune as run_tune
    from emu.validation.tune import tuned_collective

    options = BenchOptions(
        collective=tuned_collective(collective),
        begin_bytes=parse_size_bytes("-b", begin),
        end_bytes=parse_size_bytes("-e", end),
        step_factor=factor,
        fabrics=(fabric,),
        settings=parse_settings(setting or ()),
        n_ranks=ranks,
        driver="simulate",
    )
    return run_tune(prepare(options, fabric, 0).topology, options.collective, list(sizes_bytes(options)))


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(validate)
    app.command("calibrate-fabric")(calibrate_fabric)
    app.command()(tune)
