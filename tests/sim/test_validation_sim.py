"""emu validate, calibrate-fabric and tune on the simulator: small cases of each, end to end."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from emu.bench.terminal import Terminal
from emu.errors import ConfigError
from emu.protocols.costs import EndpointCosts
from emu.topologies.fabric_file import load_fabric
from emu.topologies.graph import Topology
from emu.validation import commands
from emu.validation.compare import simulated, with_costs
from emu.validation.fit import PRIORS, costs_of, fit
from emu.validation.measurement import Measurement
from emu.validation.tune import tune


@pytest.fixture
def machine() -> Topology:
    """Two ranks and 100 GB/s."""
    base = EndpointCosts(rate_bps=800 * 10**9, copy_rate_bps=8 * 10**12, tuner="nccl")
    star = load_fabric("star", {"ranks": "2", "rate": "100GB/s", "latency": "200ns", "host_size": "2"})
    return replace(star, endpoint=base)


def measured(machine: Topology, collective: str, sizes_bytes: list[int]) -> list[Measurement]:
    """What the simulator says of ``machine``, as if it had been measured."""
    blank = [
        Measurement(table="made", collective=collective, n_ranks=2, size_bytes=size_bytes, time_us=1.0)
        for size_bytes in sizes_bytes
    ]
    return [replace(row, time_us=simulated(machine, row, fitted=False).simulated_us) for row in blank]


@pytest.mark.slow
def test_a_fit_finds_the_parameters_that_made_the_times(machine: Topology) -> None:
    """From made times, one of them doubled: launch, hops and rates come out within 5 %, and held-out sizes within 2 %."""
    assert machine.endpoint is not None
    factors = {"launch": 1.5, "hop with LL": 1.4, "rate / link": 0.97, "p2p_rate / link": 1.1}
    values = [prior.start * factors.get(prior.name, 1.0) for prior in PRIORS]
    true = with_costs(machine, costs_of(machine, machine.endpoint, values))
    sizes = [1 << power for power in range(9, 30, 2)]
    rows = measured(true, "all_reduce", sizes) + measured(true, "alltoall", sizes)
    rows[3] = replace(rows[3], time_us=2 * rows[3].time_us)
    found = fit(machine, rows, lambda text: None)
    by_name = dict(zip((prior.name for prior in PRIORS), zip(found.values, values, strict=True), strict=True))
    for name in factors:
        assert by_name[name][0] == pytest.approx(by_name[name][1], rel=0.05), name
    fitted = with_costs(machine, found.costs)
    for row in measured(true, "all_gather", [1 << power for power in range(10, 29, 4)]):
        assert abs(simulated(fitted, row, fitted=False).error) < 0.02
    told = dict(zip((prior.name for prior in PRIORS), found.told, strict=True))
    assert told["launch"] > 0.9 > 0.1 > told["nvls_setup"]


def test_a_fit_needs_rows_and_an_endpoint(machine: Topology) -> None:
    """Too few rows, or a fabric without costs to start from, are refused."""
    rows = measured(machine, "all_reduce", [1024] * 6)
    with pytest.raises(ConfigError, match="5 rows are too few to fit to; give 6 sizes or more"):
        fit(machine, rows[:5], lambda text: None)
    with pytest.raises(ConfigError, match="has no \\[endpoint\\] to start from"):
        fit(replace(machine, endpoint=None), rows, lambda text: None)


def test_tuning_and_its_regret(machine: Topology) -> None:
    """The best pair has the smallest time of all legal ones, and no tuner's regret is below 1; emu's own is nearly none."""
    for its in tune(machine, "all_reduce", [1024, 1 << 24]):
        assert its.times_ps[its.best] == min(its.times_ps.values())
        assert {tuner: its.regret(tuner) >= 1 for tuner in its.choices} == {"nccl": True, "predict": True}
        assert its.regret("predict") < 1.1
    with pytest.raises(ConfigError, match="star has no \\[endpoint\\]"):
        next(tune(replace(machine, endpoint=None), "all_reduce", [1024]))


def test_validate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shipped row is run on its preset: the table on stdout, a page with curves and JSON on demand, nothing overwritten."""
    few = [row for row in commands.shipped_tables() if row.fabric == "h100-8-nccl" and row.size_bytes in (1024, 2048)]
    monkeypatch.setattr(commands, "shipped_tables", lambda: tuple(few))
    out, page, rows = io.StringIO(), tmp_path / "page.html", tmp_path / "rows.json"
    terminal = Terminal(out=out, err=io.StringIO())
    assert commands.validate((), sizes=True, html=page, json_path=rows, terminal=terminal) == 0
    text = out.getvalue()
    assert "# one_node, held out" in text and "# one_node, fitted" in text and "# h100-8-nccl, 8 ranks: error in %" in text
    assert {row["fitted"] for row in json.loads(rows.read_text())} == {True, False}
    assert "all_reduce, measured" in page.read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match="it exists; name a file that does not"):
        commands.validate((), sizes=False, html=page, json_path=None, terminal=terminal)
    with pytest.raises(ConfigError, match="--fabric 'star': there are no measurements of it; use one of h100-8-nccl"):
        commands.validate(("star",), sizes=False, html=None, json_path=None, terminal=terminal)
