"""Validation's arithmetic, its split and its shipped figures; fabric files with an endpoint."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from emu.errors import ConfigError
from emu.protocols.costs import EndpointCosts, Generation
from emu.topologies.endpoint_file import read_endpoint, write_endpoint
from emu.topologies.fabric_file import load_fabric
from emu.validation import commands
from emu.validation.aims import aim, misses
from emu.validation.emulated import MOST_BYTES, sample
from emu.validation.errors import Compared, summary
from emu.validation.measurement import Measurement, shipped_tables
from emu.validation.preset import preset_text
from emu.validation.report import size_lines, table_lines
from emu.validation.split import is_fitted


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
    assert {found.fabric for found in rows} == {"a100-8-nccl", "b200-8-nccl", "h100-8-nccl"}
    assert all(found.source and found.time_us > 0 and found.size_bytes > 0 for found in rows)
    for fabric in ("a100-8-nccl", "b200-8-nccl", "h100-8-nccl"):
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


def test_a_preset_with_another_endpoint(tmp_path: Path) -> None:
    """The file is the fabric's own, but for its endpoint and what it says of its worth; and it loads."""
    path = tmp_path / "mine.toml"
    costs = EndpointCosts(rate_bps=100 * 8 * 10**9, launch_ps=3_000_000)
    path.write_text(preset_text("h100-8-nccl", costs, calibration='fitted to "my" times'))
    made, base = load_fabric(str(path)), load_fabric("h100-8-nccl")
    assert made.endpoint == costs
    assert made.calibration == 'fitted to "my" times'
    assert (made.links, made.sources) == (base.links, base.sources)
