"""emu: a distributed emulation testbed for the interconnects of AI accelerators.

    with emu.Session("dgx-h100-8", seed=1) as session:
        result = session.run(train_step, gradient)      # SPMD: runs on every accelerator, results by rank

    def train_step(rank, gradient):
        work = rank.comm.all_reduce(gradient, op="sum", async_op=True)
        rank.compute(us=250)                            # declared compute: model time, no host work
        work.wait()

The rooms, from the ground up:

    units errors clock wire         quantities, the error tree, time, bytes
    topologies presets              fabrics as data
    impairments fabric              links, switches' queues, endpoints: machines that are told the time
    collectives                     algorithms as data, their verifier, their executor
    drivers                         two loops over the same machines: simulate and emulate
    transport actors session        ZeroMQ, Ray, and what owns them
    bench cli                       cases, tables, the command line
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emu.errors import (
        CollectiveMismatch as CollectiveMismatch,
    )
    from emu.errors import (
        ConfigError as ConfigError,
    )
    from emu.errors import (
        Deadlock as Deadlock,
    )
    from emu.errors import (
        EmuError as EmuError,
    )
    from emu.errors import (
        FidelityError as FidelityError,
    )
    from emu.errors import (
        PeerLost as PeerLost,
    )
    from emu.errors import (
        RankFailed as RankFailed,
    )
    from emu.errors import (
        RankLeft as RankLeft,
    )
    from emu.errors import (
        Stalled as Stalled,
    )
    from emu.rank import Communicator as Communicator
    from emu.rank import Rank as Rank
    from emu.rank import Work as Work
    from emu.session import Counters as Counters
    from emu.session import Session as Session
    from emu.topologies.fabric_file import load_fabric as load_fabric

__version__ = "0.1.0"

_HOMES = {
    **dict.fromkeys(
        (
            "CollectiveMismatch", "ConfigError", "Deadlock", "EmuError", "FidelityError", "PeerLost", "RankFailed", "RankLeft",
            "Stalled",
        ),
        "emu.errors",
    ),
    **dict.fromkeys(("Communicator", "Rank", "Work"), "emu.rank"),
    **dict.fromkeys(("Counters", "Session"), "emu.session"),
    "load_fabric": "emu.topologies.fabric_file",
}  # fmt: skip
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Names are imported on first use, so that ``emu --help`` and the actors start fast."""
    if name not in _HOMES:
        raise AttributeError(f"module 'emu' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
