"""The commands of testbeds that stay: up, status, down."""

from __future__ import annotations

from typing import Annotated

import typer

from emu.cli.options import (
    Address,
    Dilation,
    Fault,
    Faults,
    Impair,
    MetricsNames,
    PerActor,
    RankMap,
    Ranks,
    Seed,
    Setting,
    Timeout,
    Transport,
    emulation_option,
    fabric_option,
    output_option,
)


def up(
    name: Annotated[str, typer.Argument(help="What to call it.")] = "default",
    fabric: Annotated[str | None, fabric_option("--fabric", help="Preset, topology or .toml file. Default dgx-h100-8.")] = None,
    setting: Setting = None,
    ranks: Ranks = None,
    rank_map: RankMap = None,
    impair: Impair = None,
    fault: Fault = None,
    faults: Faults = None,
    dilation: Dilation = "auto",
    per_actor: PerActor = "auto",
    transport: Transport = "auto",
    address: Address = None,
    timeout: Timeout = 30.0,
    seed: Seed = 0,
    ttl: Annotated[float | None, emulation_option("--ttl", help="End by itself after so many idle wall seconds.")] = None,
    metrics: Annotated[
        str,
        output_option(
            "--metrics", metavar="ADDRESS:PORT", help="Where metrics are served; auto: a free port of 127.0.0.1; off: none."
        ),
    ] = "auto",
    metrics_names: MetricsNames = "emu",
) -> int:
    """Start a testbed that stays, so that runs find its actors up: emu bench --session NAME.

    emu up lab --fabric star --set ranks=8 --set rate=50GB/s

    emu bench all_reduce --session lab -b 1M -e 64M -f 4

    emu down lab
    """
    from emu.bench.options import DEFAULT_FABRIC, BenchOptions, given_faults, parse_auto, parse_count, parse_settings
    from emu.testbed.commands import up as run_up
    from emu.testbed.plan import TestbedPlan

    options = BenchOptions(
        collective="all_reduce",
        fabrics=(fabric or DEFAULT_FABRIC,),
        settings=parse_settings(setting or ()),
        n_ranks=ranks,
        rank_map=rank_map,
        impairments=tuple(impair or ()),
        faults=given_faults(fault, faults),
        dilation=parse_auto("--dilation", dilation),
        accelerators_per_actor=parse_count("--accelerators-per-actor", per_actor),
        address=address,
        transport=transport,
        metrics=None if metrics == "off" else metrics,
        metrics_names=metrics_names,
        timeout_s=timeout,
        seed=seed,
    )
    return run_up(name, TestbedPlan(options=options, ttl_s=ttl))


def status(
    name: Annotated[str | None, typer.Argument(help="One in full; without it, all in a line each.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Everything, of every rank, actor and link.")] = False,
) -> int:
    """Say what testbeds are and do: a line each, or one in full, where equals are grouped and only outliers are named."""
    from emu.testbed.commands import status as run_status

    return run_status(name, as_json=json)


def down(
    name: Annotated[str | None, typer.Argument(help="Which. Default: default.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All testbeds of this user.")] = False,
) -> int:
    """End a testbed; when this is back, no process, port, socket or file of it is left."""
    from emu.testbed.commands import down as run_down

    return run_down(name, every=every)
