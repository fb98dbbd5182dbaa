"""Commands that run a collective over sizes: bench, predict (the same, simulated) and compare."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from emu.cli.options import (
    Address,
    Algorithm,
    Begin,
    Check,
    Chunk,
    Collective,
    Dilation,
    Factor,
    Fault,
    Faults,
    Impair,
    Iterations,
    Method,
    MetricsNames,
    PerActor,
    Protocol,
    RankMap,
    Ranks,
    Record,
    Seed,
    Setting,
    Strict,
    Timeout,
    Transport,
    Tuner,
    Warmup,
    emulation_option,
    fabric_option,
    nccl_option,
    output_option,
)

COMPARE_COLUMNS: Final = """Columns, without those that say nothing in any row:

size - bytes; switching - the preset with its changes; algo - the algorithm, the same for all rows of a size

median us - model time of one call, until the last rank has it (-a 3 of emu bench); over iterations, or over --seeds

max us - the largest of the same, where they are fewer than 100; p99 us - nearest rank, where they are more

pauses us - time for which ports were paused; per call and summed over ports, as the columns after it

waits us - time for which a packet waited for a pause or credits while the wire was free

marks - packets marked by ECN; drops - packets dropped, in switches and adapters; trims - packets cut to their header

resent - bytes sent again, end to end or by links

cause - what the counters point to, and where

late % - how much longer the stopwatch says than the model; verdict - whether the host kept pace

Below: what the presets differ in, and which were skipped because the fabric or an impairment does not go with them.
"""


def bench(
    context: typer.Context,
    collective: Collective,
    begin: Begin = "32M",
    end: Annotated[str, nccl_option("-e", "--maxbytes", help="Largest size.")] = "32M",
    factor: Factor = 1,
    step: Annotated[str, nccl_option("-i", "--stepbytes", help="Step between sizes, without -f.")] = "1M",
    iterations: Iterations = 20,
    warmup: Warmup = 1,
    check: Check = None,
    op: Annotated[str, nccl_option("-o", "--op", help="sum, prod, min, max or avg.")] = "sum",
    dtype: Annotated[str, nccl_option("-d", "--datatype", help="float, half, bfloat16, double, int32, ...")] = "float",
    root_rank: Annotated[int, nccl_option("-r", "--root", help="Root of rooted collectives.")] = 0,
    average: Annotated[
        int, nccl_option("-a", "--average", help="Time over ranks: 0 rank 0's, 1 mean (max with a root), 2 min, 3 max.")
    ] = 1,
    per_iteration: Annotated[
        int, nccl_option("-I", help="1: columns over iterations; p99 of fewer than 100 is the largest.")
    ] = 0,
    fabric: Annotated[
        list[str] | None,
        fabric_option("--fabric", help="Preset, topology or .toml file; repeat to compare. Default dgx-h100-8."),
    ] = None,
    setting: Setting = None,
    ranks: Ranks = None,
    rank_map: RankMap = None,
    impair: Impair = None,
    fault: Fault = None,
    faults: Faults = None,
    algorithm: Algorithm = None,
    protocol: Protocol = None,
    tuner: Tuner = None,
    channels: Annotated[int, fabric_option("--channels", help="Channels that blocks are dealt over.")] = 1,
    chunk: Chunk = "auto",
    driver: Annotated[str | None, emulation_option("--driver", help="emulate (real data, real time) or simulate.")] = None,
    dilation: Dilation = "auto",
    per_actor: PerActor = "auto",
    method: Method = "auto",
    transport: Transport = "auto",
    address: Address = None,
    metrics: Annotated[
        str | None,
        output_option("--metrics", metavar="ADDRESS:PORT", help="Serve metrics while it runs; auto: a free port of 127.0.0.1."),
    ] = None,
    metrics_names: MetricsNames = "emu",
    timeout: Timeout = 30.0,
    seed: Seed = 0,
    seeds: Annotated[int, emulation_option("--seeds", help="Run N seeds; median, p5 and p95.")] = 1,
    strict: Strict = False,
    json: Annotated[
        Path | None,
        output_option("--json", "-J", help="Write every row, verdict and option, as nccl-tests' JSON; never overwrites."),
    ] = None,
    run_file: Annotated[
        Path | None, output_option("--run-file", help="Write options, fabrics and model times for `emu rerun`; never overwrites.")
    ] = None,
    record: Record = None,
    session: Annotated[
        str | None, emulation_option("--session", metavar="NAME", help="On a testbed that emu up started.")
    ] = None,
    wait: Annotated[bool, emulation_option("--wait", help="With --session: until it is free, if it is busy.")] = False,
) -> int:
    """Run a collective over a range of sizes and print nccl-tests' table.

    `emu bench` emulates: real data over shaped links. `emu predict` simulates: the model's times, at once.
    """
    from emu.bench.commands import bench as run_bench
    from emu.bench.options import (
        DEFAULT_FABRIC,
        BenchOptions,
        given_algorithm,
        given_faults,
        given_protocol,
        parse_auto,
        parse_count,
        parse_settings,
        parse_size_bytes,
        parse_switch,
    )

    options = BenchOptions(
        collective=collective,
        begin_bytes=parse_size_bytes("-b", begin),
        end_bytes=parse_size_bytes("-e", end),
        step_factor=factor,
        step_bytes=parse_size_bytes("-i", step),
        iterations=iterations,
        warmup=warmup,
        check=None if check is None else parse_switch("-c", check),
        op=op,
        dtype=dtype,
        root=root_rank,
        average=average,
        per_iteration=parse_switch("-I", per_iteration),
        fabrics=tuple(fabric or (DEFAULT_FABRIC,)),
        settings=parse_settings(setting or (), protocol=protocol, tuner=tuner),
        n_ranks=ranks,
        rank_map=rank_map,
        algorithm=given_algorithm(algorithm, collective),
        protocol=given_protocol(collective),
        channels=channels,
        chunk_bytes=None if chunk == "auto" else parse_size_bytes("--chunk", chunk),
        driver=driver or ("simulate" if context.info_name == "predict" else "emulate"),
        dilation=parse_auto("--dilation", dilation),
        accelerators_per_actor=parse_count("--accelerators-per-actor", per_actor),
        method=method,
        transport=transport,
        seed=seed,
        n_seeds=seeds,
        impairments=tuple(impair or ()),
        faults=given_faults(fault, faults),
        address=address,
        metrics=metrics,
        metrics_names=metrics_names,
        timeout_s=timeout,
        strict=strict,
    )
    if session is not None:
        from emu.testbed.commands import bench as run_on_testbed

        given = _given(context)
        return run_on_testbed(session, options, given=given, wait=wait, arguments=sys.argv, json_path=json, run_path=run_file)
    return run_bench(options, arguments=sys.argv, json_path=json, run_path=run_file, record_path=record)


def _given(context: typer.Context) -> set[str]:
    """The flags that were typed, by their first long name."""
    typed = [
        parameter.opts
        for parameter in context.command.params
        if parameter.name is not None and str(context.get_parameter_source(parameter.name)).endswith("COMMANDLINE")
    ]
    return {next((name for name in names if name.startswith("--")), names[0]) for names in typed}


def compare(
    collective: Collective,
    switching: Annotated[
        list[str] | None,
        fabric_option(
            "--switching",
            metavar="NAME[,KEY=VALUE,...]",
            help="A switching preset, with changes; repeat for more rows. Default: five of them, RoCE to Ultra Ethernet.",
        ),
    ] = None,
    fabric: Annotated[str | None, fabric_option("--fabric", help="Preset, topology or .toml file. Default dgx-h100-8.")] = None,
    setting: Annotated[
        list[str] | None, fabric_option("--set", metavar="KEY=VALUE", help="A topology's parameter, for all rows.")
    ] = None,
    ranks: Ranks = None,
    impair: Impair = None,
    algorithm: Algorithm = None,
    chunk: Chunk = "auto",
    begin: Begin = "16M",
    end: Annotated[str | None, nccl_option("-e", "--maxbytes", help="Largest size. Default that of -b.")] = None,
    factor: Factor = 2,
    iterations: Iterations = 5,
    warmup: Warmup = 1,
    check: Check = None,
    driver: Annotated[str, emulation_option("--driver", help="simulate, or emulate (real data, real time).")] = "simulate",
    dilation: Dilation = "auto",
    per_actor: PerActor = "auto",
    address: Address = None,
    timeout: Timeout = 30.0,
    seed: Annotated[int, emulation_option("--seed", help="Of routes, marks and impairments.")] = 0,
    seeds: Annotated[int, emulation_option("--seeds", help="Run N seeds; median and p99 over them.")] = 1,
    strict: Strict = False,
    json: Annotated[
        Path | None, output_option("--json", "-J", help="Write every row with all counters; never overwrites.")
    ] = None,
) -> int:
    """Run a collective under several disciplines of full links and print one table: time, pauses, marks, drops, cause.

    Times are those of the last rank, since a mean over ranks would hide a host that is stuck.

    emu compare all_reduce --fabric star --set ranks=8 --set rate=400Gbit/s -b 1M -e 16M -f 4
    """
    from emu.bench.commands import compare as run_compare
    from emu.bench.compare import DEFAULT_SWITCHING
    from emu.bench.options import (
        DEFAULT_FABRIC,
        BenchOptions,
        given_algorithm,
        given_protocol,
        parse_auto,
        parse_count,
        parse_settings,
        parse_size_bytes,
        parse_switch,
    )

    options = BenchOptions(
        collective=collective,
        begin_bytes=parse_size_bytes("-b", begin),
        end_bytes=parse_size_bytes("-e", begin if end is None else end),
        step_factor=factor,
        iterations=iterations,
        warmup=warmup,
        check=None if check is None else parse_switch("-c", check),
        fabrics=(fabric or DEFAULT_FABRIC,),
        settings=parse_settings(setting or ()),
        n_ranks=ranks,
        algorithm=given_algorithm(algorithm, collective),
        protocol=given_protocol(collective),
        chunk_bytes=None if chunk == "auto" else parse_size_bytes("--chunk", chunk),
        driver=driver,
        dilation=parse_auto("--dilation", dilation),
        accelerators_per_actor=parse_count("--accelerators-per-actor", per_actor),
        seed=seed,
        n_seeds=seeds,
        impairments=tuple(impair or ()),
        address=address,
        timeout_s=timeout,
        strict=strict,
    )
    return run_compare(options, switching or DEFAULT_SWITCHING, arguments=sys.argv, json_path=json)


def register(app: typer.Typer) -> None:
    """Add the three to the command line."""
    app.command("bench")(bench)
    app.command("predict", help="As `emu bench`, simulated: same table, no processes, no data.")(bench)
    app.command(epilog=COMPARE_COLUMNS)(compare)
