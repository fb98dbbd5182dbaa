"""Options that several commands take, written once."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

ALGORITHM_HELP: Final = (
    "auto; NCCL's ring, tree, nvls, nvlstree, collnet_direct, collnet_chain, pat, pxn; emu's own two_tree, direct (NCCL's for"
    " alltoall, gather and scatter), pairwise, bruck, halving_doubling, hierarchical, torus; module:function; or as in NCCL_ALGO,"
    " which counts if left out."
)
nccl_option = partial(typer.Option, rich_help_panel="nccl-tests' options")
fabric_option = partial(typer.Option, rich_help_panel="Fabric")
emulation_option = partial(typer.Option, rich_help_panel="Emulation")
output_option = partial(typer.Option, rich_help_panel="Output")

Collective = Annotated[str, typer.Argument(help="all_reduce, all_gather, alltoall, broadcast, sendrecv, ...")]
Begin = Annotated[str, nccl_option("-b", "--minbytes", help="Smallest size; K, M, G are binary.")]
Factor = Annotated[float, nccl_option("-f", "--stepfactor", help="Factor between sizes.")]
Iterations = Annotated[int, nccl_option("-n", "--iters", help="Timed iterations, back to back.")]
Warmup = Annotated[int, nccl_option("-w", "--warmup_iters", help="Untimed iterations before.")]
Check = Annotated[
    int | None,
    nccl_option("-c", "--check", help="1 or 0: check results. Default 1; 0 under simulate."),
]
Setting = Annotated[
    list[str] | None,
    fabric_option("--set", metavar="KEY=VALUE", help="A topology's parameter; FABRIC.KEY=VALUE for one of several."),
]
Ranks = Annotated[int | None, fabric_option("--ranks", help="Only the first N accelerators.")]
RankMap = Annotated[str | None, fabric_option("--map", help="Rank placement: shuffle, a list such as a0,a4, or @FILE.")]
Impair = Annotated[
    list[str] | None,
    fabric_option("--impair", metavar="LINKS=KIND,...", help="Impair links, e.g. 'a3->s0=throttle,factor=0.5'."),
]
Fault = Annotated[
    list[str] | None,
    fabric_option("--fault", metavar="TARGET=KIND,...", help="A fault at a model time: 'a3->s0=slow,factor=0.5,at=2ms,for=5ms'."),
]
Faults = Annotated[
    Path | None, fabric_option("--faults", metavar="FILE", help="A schedule of faults, TOML with tables 'faults'.")
]
Protocol = Annotated[
    str | None,
    fabric_option("--protocol", help="Where there is an endpoint: auto, ll, ..., or as in NCCL_PROTO, which counts if left out."),
]
Tuner = Annotated[
    str | None, fabric_option("--tuner", help="Who chooses protocols, and algorithms: predict (emu) or nccl; as --set tuner=.")
]
Algorithm = Annotated[
    str | None,
    fabric_option("--algorithm", help=ALGORITHM_HELP),
]
Chunk = Annotated[str, fabric_option("--chunk", help="Chunk size, or auto.")]
Dilation = Annotated[str, emulation_option("--dilation", help="Wall over model time: auto, a number, or 0 for unpaced.")]
PerActor = Annotated[str, emulation_option("--accelerators-per-actor", help="auto or a number.")]
Transport = Annotated[str, emulation_option("--transport", help="auto (ipc on one host, else tcp), ipc or tcp.")]
Address = Annotated[str | None, emulation_option("--address", help="A Ray cluster to run on.")]
Timeout = Annotated[float, emulation_option("--timeout", help="Wall seconds without progress.")]
Record = Annotated[
    Path | None, output_option("--record", help="Write all events of the last row, for `emu explain`; overwrites.")
]
Seed = Annotated[int, emulation_option("--seed", help="Of routes, placement and impairments.")]
MetricsNames = Annotated[
    str, output_option("--metrics-names", help="emu, or nccl-inspector for that plugin's metrics beside emu's.")
]
Method = Annotated[
    str, emulation_option("--method", help="Of emu predict: auto, full (the loop), or vectorised (one call, exact arithmetic).")
]
Strict = Annotated[bool, output_option("--strict", help="Exit 5 when a row is degraded.")]
