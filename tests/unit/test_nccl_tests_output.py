"""nccl-tests' output is read: text of old and new versions, JSON, tables; and what is no such thing is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from emu.errors import ConfigError
from emu.validation.nccl_tests import read_file

DEVICES = "".join(
    f"#  Rank  {rank} Group  0 Pid   4711 on      host device  {rank} [0000:07:00] NVIDIA H100\n" for rank in range(4)
)
TEXT = f"""# Collective test starting: all_reduce_perf
# nThread 1 nGpus 4 minBytes 8 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
{DEVICES}#
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
host:4711:4711 [0] NCCL INFO Bootstrap
           8             2     float     sum      -1     6.20    0.00    0.00       0     6.10    0.00    0.00       0
     1048576        262144     float     sum      -1    45.45   23.07   40.38       0    43.71   23.99   41.98     N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 269.333
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_text(tmp_path: Path) -> None:
    """Collective, ranks, sizes and out-of-place times come from the output alone."""
    rows = read_file(write(tmp_path, "log.txt", TEXT))
    assert [(row.collective, row.n_ranks, row.size_bytes, row.time_us) for row in rows] == [
        ("all_reduce", 4, 8, 6.2),
        ("all_reduce", 4, 1048576, 45.45),
    ]


def test_text_of_an_old_version(tmp_path: Path) -> None:
    """Without the line that names the collective, the program's name or the user does."""
    old = TEXT.replace("# Collective test starting: all_reduce_perf\n", "")
    with pytest.raises(ConfigError, match="does not say which collective ran; give it with --collective"):
        read_file(write(tmp_path, "old.txt", old))
    assert read_file(write(tmp_path, "named.txt", f"$ ./build/all_gather_perf -g 4\n{old}"))[0].collective == "all_gather"
    assert read_file(tmp_path / "old.txt", collective="alltoall")[0].collective == "alltoall"


def test_json(tmp_path: Path) -> None:
    """The file that -J writes: times by either key, sizes of 0 left out."""
    document = {
        "version": 3,
        "args": ["./alltoall_perf", "-J", "x.json"],
        "config": {"devices": [{"rank": rank} for rank in range(8)]},
        "results": [
            {"size": 0, "out_of_place": {"time": 1.0}},
            {"size": 1024, "out_of_place": {"time": 7.5, "nwrong": "0"}},
            {"size": 2048, "out_of_place": {"cpu_time": 8.5}},
        ],
    }
    rows = read_file(write(tmp_path, "x.json", json.dumps(document)))
    assert [(row.collective, row.n_ranks, row.size_bytes, row.time_us) for row in rows] == [
        ("alltoall", 8, 1024, 7.5),
        ("alltoall", 8, 2048, 8.5),
    ]


def test_emus_own_json(tmp_path: Path) -> None:
    """A number of ranks that a file does not list is taken from the user, else asked for."""
    path = write(
        tmp_path, "y.json", json.dumps({"args": ["all_reduce_perf"], "results": [{"size": 8, "out_of_place": {"time": 5}}]})
    )
    with pytest.raises(ConfigError, match="lists 0 ranks; give the number that ran with --ranks"):
        read_file(path)
    assert read_file(path, n_ranks=16)[0].n_ranks == 16


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("a.txt", "nothing\n", "nccl-tests' output is wanted, its whole text or the JSON that -J wrote"),
        ("a.toml", "calibration = 'by all_reduce_perf, nccl_perf'\n[endpoint]\n", "nccl-tests' output is wanted, its whole text"),
        ("b.txt", "all_reduce_perf\n", "no row of nccl-tests' table"),
        ("c.json", '{"results": []}', "does not say which collective"),
        ("d.json", '{"args": ["all_reduce_perf"], "results": 3}', "not the JSON that nccl-tests writes"),
        ("e.csv", "collective,ranks\n", "no column bytes, time_us"),
        ("f.csv", "collective,ranks,bytes,time_us\nall_reduce,two,8,1\n", "whole numbers"),
    ],
)
def test_what_is_no_output(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    """Every other file is refused in one line that says what is missing."""
    with pytest.raises(ConfigError, match=complaint):
        read_file(write(tmp_path, name, text))


def test_a_missing_file(tmp_path: Path) -> None:
    """It is named."""
    with pytest.raises(ConfigError, match="cannot be read"):
        read_file(tmp_path / "gone.txt")
