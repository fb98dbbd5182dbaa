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
from emu.topologies.routing import take_ranks
from emu.validation import commands
from emu.validation.compare import simulated, with_costs
from emu.validation.fit import PRIORS, costs_of, fit
from emu.validation.measurement import Measurement
from emu.validation.preset import AT_PRIOR
from emu.validation.report import tuned_lines
from emu.validation.tune import TUNED, Tuned, tune


@pytest.fixture
def machine() -> Topology:
    """Two ranks and 100 GB/s, on a switch that reduces, which with two ranks nothing asks for."""
    base = EndpointCosts(rate_bps=800 * 10**9, copy_rate_bps=8 * 10**12, tuner="nccl")
    star = load_fabric("star", {"ranks": "2", "rate": "100GB/s", "latency": "200ns", "host_size": "2", "multicast": "true"})
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
    values = {prior.name: prior.start * factors.get(prior.name, 1.0) for prior in PRIORS}
    true = with_costs(machine, costs_of(machine, machine.endpoint, values))
    sizes = [1 << power for power in range(9, 30, 2)]
    rows = measured(true, "all_reduce", sizes) + measured(true, "alltoall", sizes)
    rows[3] = replace(rows[3], time_us=2 * rows[3].time_us)
    found = fit(machine, rows, lambda text: None)
    its = {parameter.prior.name: parameter for parameter in found.parameters}
    for name in factors:
        assert its[name].value == pytest.approx(values[name], rel=0.05), name
    fitted = with_costs(machine, found.costs)
    for row in measured(true, "all_gather", [1 << power for power in range(10, 29, 4)]):
        assert abs(simulated(fitted, row, fitted=False).error) < 0.02
    assert its["launch"].told > 0.9 > AT_PRIOR > its["nvls_setup"].told


def test_a_fit_needs_rows_and_an_endpoint(machine: Topology) -> None:
    """Too few rows, or a fabric without costs to start from, are refused."""
    rows = measured(machine, "all_reduce", [1024] * 6)
    with pytest.raises(ConfigError, match="5 rows are too few to fit to; give 6 sizes or more"):
        fit(machine, rows[:5], lambda text: None)
    with pytest.raises(ConfigError, match="has no \\[endpoint\\] to start from"):
        fit(replace(machine, endpoint=None), rows, lambda text: None)


def test_tuning_and_its_regret(machine: Topology) -> None:
    """A regret is the choice's time over the best pair's, NCCL's also over the best of those that it knows, and never below 1;
    emu's own is nearly none."""
    for its in tune(machine, "all_reduce", [1024, 1 << 24]):
        assert its.times_ps[its.best] == min(its.times_ps.values())
        assert {algorithm for algorithm, _ in its.known} == {"ring", "tree"}
        assert ("halving_doubling", "ll") in its.own and ("nvls", "simple") not in its.own | its.known
        assert its.times_ps[its.best_known] == min(its.times_ps[pair] for pair in its.known)
        assert its.choices["nccl"] in its.known
        assert its.known_regret == its.times_ps[its.choices["nccl"]] / its.times_ps[its.best_known] >= 1
        assert its.regret("nccl") == its.times_ps[its.choices["nccl"]] / its.times_ps[its.best] >= its.known_regret
        assert 1.1 > its.regret("predict") == its.times_ps[its.choices["predict"]] / its.times_ps[its.best] >= 1
    with pytest.raises(ConfigError, match="star has no \\[endpoint\\]"):
        next(tune(replace(machine, endpoint=None), "all_reduce", [1024]))


def test_what_cannot_be_tuned_is_refused_by_name(machine: Topology) -> None:
    """One rank, and collectives without a choice; what is offered instead can be tuned, each of it."""
    with pytest.raises(ConfigError, match="one rank takes no steps"):
        next(tune(take_ranks(machine, 1), "all_reduce", [1024]))
    for name in ("sendrecv", "alltoallv", "barrier", "allredux"):
        with pytest.raises(ConfigError, match=f"'{name}' is not a collective to tune.*; use one of {', '.join(TUNED)}$"):
            next(tune(machine, name, [1024]))
    for name in TUNED:
        (its,) = tune(machine, name, [4096])
        assert its.regret("nccl") >= 1 <= its.regret("predict"), name


def test_the_table_of_tuning_says_what_it_means() -> None:
    """The caption names the columns and what NCCL's tuner knows; pairs of emu's own are marked, NCCL's are not."""
    its = Tuned(
        size_bytes=1024,
        times_ps={("bruck", "ll"): 1_000_000, ("ring", "ll"): 2_000_000, ("ring", "simple"): 3_000_000},
        known=frozenset({("ring", "ll"), ("ring", "simple")}),
        own=frozenset({("bruck", "ll")}),
        choices={"nccl": ("ring", "simple"), "predict": ("bruck", "ll")},
    )
    *caption, heads, _, row = tuned_lines([its])
    text = "\n".join(caption)
    for part in ("* is emu's own", "regret: time of the choice over that of the best pair", "not CollNet or PAT"):
        assert part in text
    assert " ".join(heads.split()) == "size best us NCCL's best us nccl regret of its own predict regret"
    assert " ".join(row.split()) == "1 KiB bruck ll* 1.0 ring ll 2.0 ring simple 3.00 1.50 bruck ll* 1.00"


def test_tuning_offers_what_nccl_could_take(machine: Topology) -> None:
    """Grouped messages of more than 16 KiB have no LL among their pairs, and no tuner takes it."""
    for its in tune(machine, "alltoall", [32 << 10, 64 << 10]):
        has_ll = its.size_bytes == 32 << 10
        assert any(protocol == "ll" for _, protocol in its.times_ps) == has_ll
        assert has_ll or {protocol for _, protocol in its.choices.values()} == {"simple"}


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
