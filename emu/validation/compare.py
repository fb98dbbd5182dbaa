"""Compare: measured rows through the simulator, with the algorithm and protocol that NCCL would take, and no data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

from emu.drivers.choice import predict_ps
from emu.drivers.tuning import chosen, protocol_of
from emu.errors import ConfigError
from emu.protocols.costs import EndpointCosts
from emu.topologies.fabric_file import load_fabric
from emu.topologies.graph import Topology
from emu.topologies.routing import take_ranks
from emu.units import microseconds
from emu.validation.errors import Compared
from emu.validation.measurement import Measurement
from emu.validation.split import is_fitted

TUNER = "nccl"
"""What is compared is what NCCL took, not what emu would."""


def simulated(topology: Topology, measurement: Measurement, *, fitted: bool) -> Compared:
    """One row on the fabric's first ranks.  Raises ConfigError where the fabric has no endpoint or too few ranks."""
    if topology.endpoint is None:
        raise ConfigError(f"{topology.name} has no [endpoint], so small messages cost nothing; there is nothing to validate")
    topology = _first_ranks(replace(topology, endpoint=replace(topology.endpoint, tuner=TUNER)), measurement.n_ranks)
    members = tuple(range(measurement.n_ranks))
    collective, size_bytes, algorithm = measurement.collective, measurement.size_bytes, measurement.algorithm
    if not algorithm:
        algorithm = chosen(topology, TUNER, collective, size_bytes, members)
    return Compared(
        measurement=measurement,
        simulated_us=microseconds(predict_ps(topology, collective, algorithm, size_bytes, members, 0)),
        algorithm=algorithm,
        protocol=protocol_of(topology, collective, algorithm, size_bytes, members),
        fitted=fitted,
    )


def compare(measurements: Iterable[Measurement], progress: Callable[[str], None]) -> Iterator[Compared]:
    """All rows, each on the fabric that it names."""
    for measurement in measurements:
        progress(f"{measurement.fabric} {measurement.collective} over {measurement.n_ranks} ranks")
        yield simulated(_fabric(measurement.fabric), measurement, fitted=is_fitted(measurement))


@lru_cache(maxsize=16)
def _fabric(name: str) -> Topology:
    return load_fabric(name)


def _first_ranks(topology: Topology, n_ranks: int) -> Topology:
    return topology if n_ranks == topology.n_ranks else take_ranks(topology, n_ranks)


def with_costs(topology: Topology, costs: EndpointCosts) -> Topology:
    """The same fabric with other endpoints."""
    return replace(topology, endpoint=costs)
