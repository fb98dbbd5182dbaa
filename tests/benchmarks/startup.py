"""What a session costs to start, to stop, and to keep: seconds, and the memory of its processes.

"start s" is the median time of emu.Session(...), Ray included; "stop s" of its close().  "processes" are the
children that a running session has, Ray's own among them; "private MB" is memory that they share with nobody,
which is what one more actor costs, and "per actor MB" that of the actors alone, over their number.

    PYTHONPATH=. python tests/benchmarks/startup.py [--fabric star --set ranks=8] [--accelerators-per-actor 1] [--json]
"""

from __future__ import annotations

from statistics import median

import psutil
from results import parser, seconds, show

import emu

MB = 10**6


def private_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().uss)
    except psutil.Error:
        return 0


def is_actor(process: psutil.Process) -> bool:
    try:
        return "HostActor" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--fabric", default="star")
    options.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options.add_argument("--accelerators-per-actor", type=int, default=None)
    options.add_argument("--repeat", type=int, default=3)
    given = options.parse_args()
    settings = dict(item.split("=", 1) for item in given.set)
    starts, stops = [], []
    children: list[psutil.Process] = []
    private, of_actors, n_actors = 0, 0, 0
    for _ in range(given.repeat):
        sessions: list[emu.Session] = []
        starts.append(
            seconds(
                lambda sessions=sessions: sessions.append(
                    emu.Session(given.fabric, settings=settings, accelerators_per_actor=given.accelerators_per_actor)
                )
            )
        )
        children = psutil.Process().children(recursive=True)
        actors = [child for child in children if is_actor(child)]
        private, of_actors, n_actors = sum(map(private_bytes, children)), sum(map(private_bytes, actors)), len(actors)
        stops.append(seconds(sessions[0].close))
    topology = emu.load_fabric(given.fabric, settings)
    show(
        [
            {
                "fabric": topology.name,
                "ranks": topology.n_ranks,
                "actors": n_actors,
                "processes": len(children),
                "start s": median(starts),
                "stop s": median(stops),
                "private MB": round(private / MB),
                "per actor MB": of_actors / MB / max(1, n_actors),
            }
        ],
        as_json=given.json,
    )


if __name__ == "__main__":
    main()
