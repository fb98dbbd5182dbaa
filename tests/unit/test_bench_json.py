"""The JSON report: nccl-tests' version-3 structure with emu's objects in it, never over another file."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from bench_fakes import CALIBRATION, FakeCounters, FakeOpener, Recorder
from test_congestion_report import port
from test_congestion_report import report as congestion_report

from emu.bench import report, runner
from emu.bench.options import BenchOptions
from emu.errors import ConfigError

OPTIONS = BenchOptions(
    collective="all_reduce", begin_bytes=1024, end_bytes=2048, step_factor=2, fabrics=("star",), dilation=10.0, iterations=4
)


def made(options: BenchOptions, **how: object) -> dict[str, object]:
    results = runner.run(options, Recorder(), open_session=FakeOpener(**how), calibration=lambda: CALIBRATION)
    record = report.RunRecord(
        options=options,
        results=results,
        arguments=("emu", "bench", "all_reduce"),
        started="2024-01-01T00:00:00Z",
        ended="2024-01-01T00:01:00Z",
        calibration=CALIBRATION,
    )
    return report.document(record, {"NCCL_ALGO": "Ring", "HOME": "/home/user", "EMU_X": "1"})


def test_structure_is_nccl_tests_version_3() -> None:
    """The keys of version 3 are all there, with emu_schema_version and emu beside them."""
    document = made(OPTIONS)
    assert set(document) == {
        "version", "start_time", "args", "env", "nccl_version", "config", "results", "out_of_bounds",
        "average_bus_bandwidth", "errors", "end_time", "emu_schema_version", "emu",
    }  # fmt: skip
    assert (document["version"], document["emu_schema_version"]) == (3, 3)
    row = document["results"][0]  # type: ignore[index]
    assert set(row) == {"size", "count", "type", "redop", "root", "out_of_place", "in_place"}
    assert set(row["in_place"]) == {"time", "alg_bw", "bus_bw", "nwrong", "emu"}
    assert document["out_of_bounds"] == {"count": 0, "okay": "true"}
    assert document["config"]["validation"] == "true"  # type: ignore[index]
    assert document["config"]["devices"][7]["device_info"] == "star a7"  # type: ignore[index]


def test_emu_object_has_every_figure() -> None:
    """Each side says which driver, fabric, algorithm, dilation and seed, what was measured, modelled, and how well."""
    counters = FakeCounters(
        order_violations=2, order_weight_ps=400_000, transport_backpressure=3, largest_lateness_ps=5_000_000,
        wire_bytes_per_rank_max=6000,
    )  # fmt: skip
    document = made(OPTIONS, counters_say=counters, late={0.0: 0.01})
    assert document["results"][0]["out_of_place"]["emu"] == {  # type: ignore[index]
        "driver": "emulate",
        "fabric": "star",
        "ranks": 8,
        "algorithm": "ring",
        "protocol": "",
        "chunk_bytes": 131072,
        "dilation": 10.0,
        "measured_us": 10.1,
        "model_us": 10.0,
        "late": pytest.approx(0.01),
        "verdict": "ok",
        "order_violations": 2,
        "order_weight": 0.01,
        "transport_backpressure": 3,
        "largest_lateness_us": 5.0,
        "seed": 0,
        "wire_bytes_per_rank_max": 6000 // 5,
    }


def test_congestion_is_beside_the_figures() -> None:
    """On a fabric with switching each side has the totals and causes, each row its ports and adapters."""
    counters = FakeCounters(congestion=congestion_report(port("a1", "s0"), port("s0", "a0", dropped_packets=4), a0=2))
    row = made(OPTIONS, counters_say=counters)["results"][0]  # type: ignore[index]
    for side in ("out_of_place", "in_place"):
        told = row[side]["emu"]["congestion"]
        assert (told["discards"], told["rx_discards"], told["verdicts"][0]["cause"]) == (4, 2, "incast")
    assert [one["link"] for one in row["emu"]["ports"]] == ["a1->s0", "s0->a0"]
    assert [one["name"] for one in row["emu"]["adapters"]] == ["a0", "a1"]


def test_null_where_it_does_not_apply() -> None:
    """Simulated without payload there is nothing measured, checked, or judged: null, not 0."""
    side = made(replace(OPTIONS, driver="simulate"))["results"][0]["out_of_place"]  # type: ignore[index]
    assert side["nwrong"] is None
    assert [side["emu"][key] for key in ("measured_us", "late", "verdict", "dilation")] == [None] * 4


def test_only_nccl_and_emu_variables_are_told() -> None:
    """The environment in the report holds what may change a result and nothing of the user."""
    assert made(OPTIONS)["env"] == ["EMU_X=1", "NCCL_ALGO=Ring"]


def test_iterations_and_seeds_where_asked_for() -> None:
    """-I adds the single iterations, --seeds the percentiles."""
    document = made(replace(OPTIONS, per_iteration=True, n_seeds=2, driver="simulate"))
    emu = document["results"][0]["in_place"]["emu"]  # type: ignore[index]
    assert emu["iteration_us"] == [10.0] * 8
    assert (emu["seeds"], emu["time_p5_us"], emu["time_p95_us"]) == (2, 10.0, 10.0)


def test_several_fabrics_are_told_apart() -> None:
    """Rows of all fabrics stand in one list, each with its fabric's name."""
    document = made(replace(OPTIONS, fabrics=("star", "ring")))
    assert [row["out_of_place"]["emu"]["fabric"] for row in document["results"]] == ["star", "star", "ring", "ring"]  # type: ignore[attr-defined]
    assert [fabric["name"] for fabric in document["emu"]["fabrics"]] == ["star", "ring"]  # type: ignore[index]


def test_all_degraded_is_valid_json() -> None:
    """Without an average the report says null, as NaN is no JSON."""
    document = made(OPTIONS, late={0.0: 0.5})
    assert document["average_bus_bandwidth"] == {"bandwidth": None, "okay": "true"}
    assert json.loads(json.dumps(document, allow_nan=False))["emu"]["fabrics"][0]["degraded_rows"] == 2


def test_never_overwrites(tmp_path: Path) -> None:
    """Where the path is taken, .0 and .1 are tried, and the path that was used comes back."""
    path = tmp_path / "r.json"
    used = [report.write_new(path, {"n": n}) for n in range(3)]
    assert [file.name for file in used] == ["r.json", "r.json.0", "r.json.1"]
    assert [json.loads(file.read_text())["n"] for file in used] == [0, 1, 2]


def test_unwritable_path_is_found_before_the_run(tmp_path: Path) -> None:
    """A folder that is not there, or where no file can be made, is a ConfigError that names the flag; nothing is left."""
    with pytest.raises(ConfigError, match=r"--json .*nowhere.*cannot write there"):
        report.check_writable("--json", tmp_path / "nowhere" / "r.json")
    with pytest.raises(ConfigError, match=r"--json .* is a folder"):
        report.check_writable("--json", tmp_path)
    with pytest.raises(ConfigError, match=r"--json .*cannot write there \(File name too long\)"):
        report.check_writable("--json", tmp_path / ("x" * 300))
    report.check_writable("--json", tmp_path / "r.json")
    assert os.listdir(tmp_path) == []
