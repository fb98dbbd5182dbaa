"""Validation's arithmetic, its split and its shipped figures; fabric files with an endpoint."""

from __future__ import annotations

import sys
import tomllib
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from emu.drivers.tuning import chosen, protocol_of
from emu.errors import ConfigError
from emu.protocols.costs import EndpointCosts, Generation
from emu.topologies.endpoint_file import read_endpoint, write_endpoint
from emu.topologies.fabric_file import load_fabric
from emu.topologies.graph import Topology
from emu.validation import commands, preset
from emu.validation.aims import aim, misses
from emu.validation.emulated import MOST_BYTES, sample
from emu.validation.errors import Compared, summary
from emu.validation.fit import PRIORS, Fitted, Parameter, costs_of, priors
from emu.validation.measurement import Measurement, shipped_tables
from emu.validation.preset import Evidence, base_document, preset_text
from emu.validation.report import size_lines, table_lines
from emu.validation.split import is_fitted

MEASURED = ("a100-8-nccl", "b200-8-nccl", "h100-8-nccl", "rtx-pro-6000-8-nccl")


def row(
    simulated_us: float, *, collective: str = "all_gather", n_ranks: int = 8, size_bytes: int = 1024, fitted: bool = False
) -> Compared:
    measurement = Measurement(
        table="one_node", collective=collective, n_ranks=n_ranks, size_bytes=size_bytes, time_us=100.0, fabric="a100-8-nccl"
    )
    return Compared(measurement=measurement, simulated_us=simulated_us, algorithm="ring", protocol="ll", fitted=fitted)


def test_summary() -> None:
    """Errors of +1, -4 and +16 %: geometric mean 4, mean 7, median 4, worst +16; an error of 0 counts as 0.1 %."""
    rows = [row(101), row(96), row(116)]
    found = summary(rows)
    assert (found.geometric_mean, found.mean, found.median) == pytest.approx((0.04, 0.07, 0.04))
    assert found.worst is rows[2]
    assert summary([row(100)]).geometric_mean == pytest.approx(0.001)


def test_aims() -> None:
    """8 % at 8 ranks, 15 % at 2, none for fitted rows; a group beyond its aim is named."""
    assert (aim(row(1)), aim(row(1, n_ranks=2)), aim(row(1, fitted=True))) == (0.08, 0.15, None)
    assert misses([row(107)]) == []
    assert misses([row(110)]) == ["a100-8-nccl all_gather over 8 ranks is off by 10.0 %, aim 8 %"]


def test_a_machine_without_aim_is_named() -> None:
    """PCIe has no aim, so that nothing is missed, and the table says so."""
    measurement = replace(row(1).measurement, fabric="rtx-pro-6000-8-nccl")
    its = replace(row(190), measurement=measurement)
    assert aim(its) is None and misses([its]) == []
    text = "\n".join(table_lines([its]))
    assert "# no aim was set for rtx-pro-6000-8-nccl" in text
    assert "# no aim" not in "\n".join(table_lines([row(101)]))


def test_the_table_keeps_fitted_rows_apart() -> None:
    """Held-out rows come first, under their own title, and a miss is printed."""
    text = "\n".join(table_lines([row(110), row(101, collective="all_reduce", fitted=True)]))
    held_out, fitted = text.index("held out"), text.index("fitted: parameters")
    assert held_out < text.index("all_gather") < fitted < text.index("all_reduce")
    assert "aim missed: a100-8-nccl all_gather over 8 ranks is off by 10.0 %" in text
    assert any("+1 ll*" in line for line in size_lines([row(101, fitted=True)]))


def test_shipped_figures() -> None:
    """Every figure names a preset with an endpoint and its source; twenty rows of each are fitted to."""
    rows = shipped_tables()
    assert {found.fabric for found in rows} == set(MEASURED)
    assert all(found.source and found.time_us > 0 and found.size_bytes > 0 for found in rows)
    for fabric in MEASURED:
        assert sum(found.fabric == fabric and found.table == "one_node" for found in rows) == 168
        fitted = [found for found in rows if found.fabric == fabric and is_fitted(found)]
        assert {(found.collective, found.n_ranks) for found in fitted} == {("all_reduce", 8), ("alltoall", 8)}
        assert len(fitted) == 20
        assert load_fabric(fabric).endpoint is not None


def test_a_page_without_plotly_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What --html needs is looked for before anything is simulated, and the install command names no package of ours."""
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setattr(commands, "compare", lambda *given: pytest.fail("simulated first"))
    with pytest.raises(ConfigError, match=r"pip install .*plots.* in the clone$"):
        commands.validate((), sizes=False, html=tmp_path / "page.html", json_path=None)


def test_a_sample_is_spread_and_stated() -> None:
    """The same rows each time, all different, of several machines, collectives and sizes; more than there are is refused."""
    rows = shipped_tables()
    taken = sample(rows, 8)
    assert taken == sample(rows, 8) and len(set(taken)) == 8
    assert all(found.size_bytes <= MOST_BYTES for found in taken)
    assert {found.fabric for found in taken} == {found.fabric for found in rows}
    assert {found.collective for found in taken} == {found.collective for found in rows}
    assert len({found.size_bytes for found in taken}) > 4
    able = sum(found.size_bytes <= MOST_BYTES and found.table == "one_node" for found in rows)
    assert len(set(sample(rows, able))) == able
    with pytest.raises(ConfigError, match=f"^--emulate {able + 1}: use 1 to {able}, the rows of up to 16 MiB$"):
        sample(rows, able + 1)


def test_an_endpoint_is_written_as_it_is_read() -> None:
    """What is written is read again as the same costs, to four digits of a rate and a time."""
    costs = EndpointCosts(
        rate_bps=360 * 8 * 10**9,
        launch_ps=5_500_000,
        ll_step_ps=351_000,
        copy_rate_bps=1117 * 8 * 10**9,
        generation=Generation.BLACKWELL,
        channels=32,
        host_channels=16,
        group_setup_ps=1_000_000,
        protocol="ll",
        tuner="nccl",
    )
    assert read_endpoint(tomllib.loads(write_endpoint(costs))["endpoint"], {}, where="here") == costs


def test_protocol_and_tuner_by_setting(tmp_path: Path) -> None:
    """--set protocol= and tuner= go to the endpoint; without one, and for what there is not, they are refused."""
    costs = load_fabric("h100-8-nccl", {"protocol": "LL", "tuner": "predict"}).endpoint
    assert costs is not None
    assert (costs.protocol, costs.tuner) == ("ll", "predict")
    with pytest.raises(ConfigError, match="star has no \\[endpoint\\], so all protocols cost the same"):
        load_fabric("star", {"protocol": "ll"})
    with pytest.raises(ConfigError, match="use one of auto, simple, ll, ll128"):
        load_fabric("h100-8-nccl", {"protocol": "fast"})
    with pytest.raises(ConfigError, match="tuner 'nccll' \\(did you mean 'nccl'\\?\\): use one of nccl, predict"):
        load_fabric("h100-8-nccl", {"tuner": "nccll"})


def fitted(base: str, **told: float) -> Fitted:
    """As if a fit had found the prior of each parameter, of which rows told so much."""
    topology = load_fabric(base)
    assert topology.endpoint is not None
    its = priors(topology, topology.endpoint)
    costs = costs_of(topology, topology.endpoint, {prior.name: prior.start for prior in its})
    parameters = (Parameter(prior=prior, value=prior.start, deviation=0.1, told=told.get(prior.name, 0.0)) for prior in its)
    return Fitted(costs=costs, parameters=tuple(parameters))


def written(base: str, found: Fitted, path: Path) -> Topology:
    """The file that a fit to two files' rows writes, two held out by 4 and 16 %, loaded again."""
    rows = [row(101, collective="all_reduce", fitted=True), row(102, collective="alltoall", fitted=True), row(104), row(116)]
    evidence = Evidence(files=(Path("lab/ar.txt"), Path('lab/a2a "2".json')), rows=rows, day=date(2026, 5, 17))
    path.write_text(preset_text(base, base_document(base), found, evidence), encoding="utf-8")
    return load_fabric(str(path))


def test_a_fitted_preset_states_its_own_source(tmp_path: Path) -> None:
    """Files, day, rows and held-out error are the fit's; what rows did not tell and what the base had are named as that."""
    base = load_fabric("h100-8-nccl")
    made = written("h100-8-nccl", fitted("h100-8-nccl", launch=0.97, setup=0.1), tmp_path / "mine.toml")
    sources = dict(made.sources)
    assert made.calibration == (
        'calibrated: endpoint fitted to 2 measured times (ar.txt, a2a "2".json); 2 held out are off by 8.0 % (geometric mean)'
    )
    assert sources["endpoint"].startswith(
        "D: fitted by emu calibrate-fabric on 2026-05-17 to 2 rows (1 all_reduce over 8 ranks, 1 alltoall over 8 ranks) of"
        ' ar.txt, a2a "2".json; 2 held out are off by 8.0 % (geometric mean).'
    )
    assert sources["endpoint"].endswith(": launch 97 %, setup 10 %")
    assert "aiconfigurator" not in sources["endpoint"]
    assert (
        sources["endpoint_prior"].startswith("E: not fitted, the fit's prior") and "nvls_rate / link" in sources["endpoint_prior"]
    )
    assert sources["endpoint_base"] == "not fitted, as h100-8-nccl has it: copy_rate, tuner_rate, tuner"
    kept = ("rate", "copy_rate", "multicast")
    assert made.links == base.links and [sources[key] for key in kept] == [dict(base.sources)[key] for key in kept]


def test_a_preset_of_a_preset_forgets_the_first_fit(tmp_path: Path) -> None:
    """What an earlier fit said of its rows and priors does not outlive it."""
    written("h100-8-nccl", fitted("h100-8-nccl"), tmp_path / "first.toml")
    everything = {prior.name: 1.0 for prior in PRIORS}
    second = written(str(tmp_path / "first.toml"), fitted("h100-8-nccl", **everything), tmp_path / "second.toml")
    assert "endpoint_prior" not in dict(second.sources)
    assert dict(second.sources)["endpoint_base"].startswith("not fitted, as first.toml has it: ")


LAB = """# of the lab
description = "my lab [rack 3]"  # not that of [rack 4]

[topology] # [sic]
kind = "star"
ranks = 8
rate = "63GB/s"

[endpoint]
rate = "24GB/s" # guessed [at night]
copy_rate = "1TB/s" # measured
interconnect = "pci"

# slow slots
[[overrides]]
links = "a3->*"
rate = "5GB/s"
"""


def test_a_fitted_file_is_edited_as_toml(tmp_path: Path) -> None:
    """Brackets in texts and comments do no harm, tables and comments stay, but for the comment of a value that changed."""
    path = tmp_path / "lab.toml"
    path.write_text(LAB, encoding="utf-8")
    found = fitted(str(path))
    made = written(str(path), found, tmp_path / "fitted.toml")
    text = (tmp_path / "fitted.toml").read_text(encoding="utf-8")
    assert made.description == "my lab [rack 3]" and made.links == load_fabric(str(path)).links
    assert made.endpoint == found.costs
    for comment in ("# of the lab", "# not that of [rack 4]", "# [sic]", "# measured", "# slow slots"):
        assert comment in text
    assert "guessed" not in text


def test_no_file_is_made_that_does_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that emu would not load is refused before it is written; so is a base that is no file, before anything is fitted."""
    monkeypatch.setattr(preset, "write_endpoint", lambda costs: "[endpoint]\nrate = 'fast'\n")
    with pytest.raises(ConfigError, match=r"^nothing is written, as emu would not load it: fitted.toml: .*rate"):
        written("h100-8-nccl", fitted("h100-8-nccl"), tmp_path / "mine.toml")
    with pytest.raises(ConfigError, match=r"^--fabric star: it is no file"):
        base_document("star")


def test_what_cannot_be_written_is_refused_before_the_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--output into a folder that is not there is one line, and nothing is fitted for it."""
    monkeypatch.setattr(commands, "fit", lambda *given: pytest.fail("fitted first"))
    with pytest.raises(ConfigError, match=r"^--output .*/none/mine.toml: nothing can be written in .*; name a folder"):
        commands.calibrate_fabric(
            (),
            fabric="h100-8-nccl",
            collective=None,
            n_ranks=None,
            only=None,
            fit_collectives=(),
            fit_ranks=None,
            output=tmp_path / "none" / "mine.toml",
        )


def test_presets_say_of_each_parameter_whether_rows_told_it() -> None:
    """A fitted preset names each parameter of its fit once, under endpoint or endpoint_prior; without NVLS it has none of it."""
    for fabric in MEASURED:
        topology = load_fabric(fabric)
        assert topology.endpoint is not None
        sources = dict(topology.sources)
        said = [part.rsplit(" ", 2)[0] for part in sources["endpoint"].rpartition(": ")[2].split(", ")]
        unsaid = sources["endpoint_prior"].rpartition(": ")[2].split(", ")
        assert sorted(said + unsaid) == sorted(prior.name for prior in priors(topology, topology.endpoint)), fabric
        reduces = any(node.multicast for node in topology.nodes)
        assert reduces == (topology.endpoint.nvls_rate_bps is not None) == (topology.endpoint.nvls_setup_ps > 0), fabric


def test_over_pcie_nccl_takes_neither_ll128_nor_nvls() -> None:
    """On the PCIe machine NCCL's tuner takes LL up to 512 KiB, then Simple, on a ring, whatever else its generation has."""
    topology, members = load_fabric("rtx-pro-6000-8-nccl"), tuple(range(8))
    taken = []
    for size_bytes in (1 << power for power in range(9, 30, 5)):
        algorithm = chosen(topology, "nccl", "all_reduce", size_bytes, members)
        taken.append((algorithm, protocol_of(topology, "all_reduce", algorithm, size_bytes, members)))
    assert taken == [("ring", "ll")] * 3 + [("ring", "simple")] * 2
