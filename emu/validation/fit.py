"""Fit: an endpoint's parameters from measured times, by the simulator itself.

The residual of a row is the logarithm of simulated over measured time, weighed by Cauchy's loss so that a jump in the data
counts little.  Each parameter has a prior, broad and the same for every machine: a share of the link's rate (of what it carries
of data, for NVLink a fifth less than its data sheet has), NCCL's own constants for how much slower Simple and LL128 are per hop
than LL (``src/graph/tuning.cc``: 3.4 and 1.9 us against 0.6), and the order of magnitude of a launch.  Over PCIe the two rates
are taken for unknown.  What rows do not tell stays at its prior, and the fit says so.  Method: Levenberg and Marquardt,
derivatives by differences, in logarithms.

Not fitted: what a data sheet gives (copy_rate, a third of the memory's rate, as a byte is read, passed on and written; channels,
generation and tuner_rate, which are NCCL's) and what few rows could tell (message, LONG_HOP).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from emu.collectives.reduce import Array
from emu.errors import ConfigError
from emu.protocols.costs import EndpointCosts, Interconnect
from emu.topologies.graph import Topology
from emu.units import PS_PER_MICROSECOND
from emu.validation.compare import simulated, with_costs
from emu.validation.errors import Compared
from emu.validation.measurement import Measurement

LOSS_SCALE: Final = 0.05
"""Relative error from which a row counts less and less."""
DIFFERENCE: Final = 0.02
MOST_ROUNDS: Final = 12
ENOUGH: Final = 1e-3
"""The fit ends when a round gains less than this share."""
MESSAGE_PS: Final = PS_PER_MICROSECOND // 5
LONG_HOP: Final = 1.25
"""A hop with LL of a full thread block's message over one of a few warps'."""


@dataclass(frozen=True, slots=True)
class Prior:
    """A parameter of the fit: ``start`` in ``unit``, and how far off it may be (one sigma, in powers of e).

    ``keys``: what it decides of the endpoint's table.
    """

    name: str
    start: float
    sigma: float
    unit: str
    keys: tuple[str, ...]


PRIORS: Final = (
    Prior("launch", 6.0, 0.5, "us", ("launch",)),
    Prior("setup", 8.0, 0.4, "us", ("setup",)),
    Prior("hop with LL", 0.8, 0.5, "us", ("ll_step", "block_step")),
    Prior("hop with LL128 / LL", 1.9 / 0.6, 0.3, "", ("ll128_step",)),
    Prior("hop with Simple / LL", 3.4 / 0.6, 0.3, "", ("step",)),
    Prior("group_setup", 1.0, 0.5, "us", ("group_setup",)),
    Prior("rate / link", 0.97, 0.03, "", ("rate",)),
    Prior("p2p_rate / link", 0.85, 0.15, "", ("p2p_rate",)),
    Prior("ll_rate / rate", 0.4, 0.2, "", ("ll_rate",)),
    Prior("channel_rate", 6.0, 0.4, "GB/s", ("channel_rate",)),
    Prior("nvls_setup", 20.0, 0.5, "us", ("nvls_setup",)),
    Prior("nvls_rate / link", 0.8, 0.2, "", ("nvls_rate",)),
)
PCI: Final = (
    Prior("rate / link", 0.5, 0.5, "", ("rate",)),
    Prior("p2p_rate / link", 0.5, 0.5, "", ("p2p_rate",)),
)
"""Those that are others over PCIe, where the host's roots, and not the link, say what passes between two of its slots."""


def priors(topology: Topology, base: EndpointCosts) -> tuple[Prior, ...]:
    """The parameters of a fit: where no switch reduces, NVLS has none."""
    reduces = any(node.multicast for node in topology.nodes)
    its = {prior.name: prior for prior in PRIORS if reduces or not prior.name.startswith("nvls")}
    if base.interconnect is Interconnect.PCI:
        its |= {prior.name: prior for prior in PCI}
    return tuple(its.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """``deviation``: one sigma, as a share of ``value``; ``told``: how much the rows said of it (0: all is prior)."""

    prior: Prior
    value: float
    deviation: float
    told: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """The endpoint, and what it was made of."""

    costs: EndpointCosts
    parameters: tuple[Parameter, ...]


def fit(topology: Topology, measurements: Sequence[Measurement], progress: Callable[[str], None]) -> Fitted:
    """The parameters of ``topology``'s endpoint that suit the rows.  Raises ConfigError where there are too few."""
    if len(measurements) < 6:
        raise ConfigError(f"{len(measurements)} rows are too few to fit to; give 6 sizes or more, small and large")
    if topology.endpoint is None:
        raise ConfigError(f"{topology.name} has no [endpoint] to start from; write one with its rate, or copy a preset's")
    base = topology.endpoint
    its_priors = priors(topology, base)

    def residuals(x: Array) -> Array:
        fabric = with_costs(topology, costs_of(topology, base, _values(x, its_priors)))
        rows = [simulated(fabric, measurement, fitted=True) for measurement in measurements]
        return np.array([_residual(row) for row in rows])

    x = np.zeros(len(its_priors))
    now = residuals(x)
    damping = 1e-2
    for number in range(MOST_ROUNDS):
        progress(f"round {number + 1} of at most {MOST_ROUNDS}, cost {_cost(now, x):.3f}")
        slopes = np.stack([(residuals(x + step) - now) / DIFFERENCE for step in np.eye(len(x)) * DIFFERENCE], axis=1)
        before = _cost(now, x)
        while damping < 1e6:
            moved = x - _step(slopes, now, x, damping)
            there = residuals(moved)
            if _cost(there, moved) < before:
                x, now, damping = moved, there, damping / 5
                break
            damping *= 5
        if before - _cost(now, x) < ENOUGH * before:
            break
    slopes = np.stack([(residuals(x + step) - now) / DIFFERENCE for step in np.eye(len(x)) * DIFFERENCE], axis=1)
    spread = np.sqrt(np.diag(np.linalg.inv(_curvature(slopes, now))))
    values = _values(x, its_priors)
    return Fitted(
        costs=costs_of(topology, base, values),
        parameters=tuple(
            Parameter(prior=prior, value=values[prior.name], deviation=float(sigma * prior.sigma), told=float(1 - sigma**2))
            for prior, sigma in zip(its_priors, spread, strict=True)
        ),
    )


def costs_of(topology: Topology, base: EndpointCosts, values: Mapping[str, float]) -> EndpointCosts:
    """The endpoint that the values of :func:`priors`, by name, describe.  A hop is a message's issue, its way and its receipt."""
    hop_us = values["hop with LL"]
    link_bps = max(link.rate_bps for link in topology.links)
    way_ps = sum(topology.links[link].latency_ps for link in topology.route(topology.ranks[0], topology.ranks[1], 0))

    def receipt_ps(us: float) -> int:
        return max(0, _ps(us) - way_ps - MESSAGE_PS)

    costs = replace(
        base,
        message_ps=MESSAGE_PS,
        launch_ps=_ps(values["launch"]),
        setup_ps=_ps(values["setup"]),
        group_setup_ps=_ps(values["group_setup"]),
        ll_step_ps=receipt_ps(hop_us),
        ll128_step_ps=receipt_ps(hop_us * values["hop with LL128 / LL"]),
        step_ps=receipt_ps(hop_us * values["hop with Simple / LL"]),
        block_step_ps=_ps(hop_us * (LONG_HOP - 1)),
        rate_bps=round(link_bps * values["rate / link"]),
        p2p_rate_bps=round(link_bps * values["p2p_rate / link"]),
        ll_rate_bps=round(link_bps * values["rate / link"] * values["ll_rate / rate"]),
        channel_rate_bps=round(values["channel_rate"] * 8e9),
    )
    if "nvls_setup" not in values:
        return costs
    return replace(costs, nvls_setup_ps=_ps(values["nvls_setup"]), nvls_rate_bps=round(link_bps * values["nvls_rate / link"]))


def _ps(us: float) -> int:
    return round(us * 1000) * (PS_PER_MICROSECOND // 1000)


def _values(x: Array, its_priors: Sequence[Prior]) -> dict[str, float]:
    return {prior.name: prior.start * math.exp(float(off) * prior.sigma) for off, prior in zip(x, its_priors, strict=True)}


def _residual(row: Compared) -> float:
    return math.log(row.simulated_us / row.measurement.time_us) / LOSS_SCALE


def _cost(residuals: Array, x: Array) -> float:
    return float(np.log1p(residuals**2).sum() + x @ x)


def _curvature(slopes: Array, residuals: Array) -> Any:
    weights = 1 / (1 + residuals**2)
    return slopes.T @ (weights[:, None] * slopes) + np.eye(slopes.shape[1])


def _step(slopes: Array, residuals: Array, x: Array, damping: float) -> Any:
    gradient = slopes.T @ (residuals / (1 + residuals**2)) + x
    curvature = _curvature(slopes, residuals)
    return np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), gradient)
