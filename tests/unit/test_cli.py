"""The command line: one-line errors, exit codes, and where output goes."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from bench_fakes import CALIBRATION, FakeOpener

from emu import cli
from emu.bench import calibrate, commands
from emu.cli.app import app
from emu.errors import Deadlock
from emu.topologies.catalogue import generic_topologies
from emu.topologies.switching_file import SWITCHING_KEYS

STAR = ["bench", "all_reduce", "--fabric", "star", "-b", "1K", "-e", "2K", "-f", "2"]


@pytest.fixture
def opener(monkeypatch: pytest.MonkeyPatch) -> FakeOpener:
    """The command line on fake sessions; change ``how`` to say what they answer."""
    fake = FakeOpener()
    defaults = commands.bench.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "opened", fake)
    monkeypatch.setattr(calibrate, "load", lambda path: CALIBRATION)
    monkeypatch.delenv("NCCL_TESTS_MIN_BW", raising=False)
    return fake


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bnch"], "Did you mean 'bench'"),
        (["bench", "all_reduce", "--fabrc", "star"], "did you mean --fabric"),
        (["bench"], "Missing argument"),
        (["bench", "all_reduce", "-n", "many"], "-n 'many' must be a whole number (emu bench --help)"),
        (["predict", "all_reduce", "--ranks", "foo"], "--ranks 'foo' must be a whole number (emu predict --help)"),
        (["bench", "all_reduce", "-f", "two"], "-f 'two' must be a number (emu bench --help)"),
        (["calibrate", "--adress", "x"], "(emu calibrate --help)"),
        (["bench", "all_reduce", "-b", "foo"], "-b 'foo' is not a size"),
        (["bench", "all_reduce", "-e", "1.5"], "-e '1.5' is 1.5 bytes"),
        (["bench", "all_reduce", "-i", "-1"], "-i '-1' is negative"),
        (["bench", "all_reduce", "--chunk", "foo"], "--chunk 'foo' is not a size"),
        (["bench", "allreduc"], "did you mean 'all_reduce'"),
        (["bench", "all_reduce", "-b", "8Q"], "'Q' is not a unit of size"),
        (["bench", "all_reduce", "-e", "1"], "-e 1 is less than -b"),
        (["bench", "all_reduce", "-c", "2"], "-c 2 must be from 0 to 1"),
        (["bench", "all_reduce", "-I", "2"], "-I 2 must be from 0 to 1"),
        (["bench", "all_reduce", "--set", "ranks"], "key=value"),
        (["bench", "all_reduce", "--dilation", "slow"], "--dilation 'slow' must be auto or a number"),
        (["bench", "all_reduce", "--fabric", "str"], "did you mean 'star'"),
        (["predict", "all_reduce", "--fabric", "star", "--set", "rank=3"], "did you mean 'ranks'"),
        (["predict", "all_reduce", "--fabric", "star", "--algorithm", "rnig"], "did you mean ring"),
        (["bench", "all_reduce", "--json", "/no/such/folder/r.json"], "--json '/no/such/folder/r.json': cannot write there"),
        (["bench", "all_reduce", "--json", "/dev/null"], "--json '/dev/null' is a device, pipe or socket"),
        (["bench", "all_reduce", "--run-file", "/proc/x.json"], "--run-file '/proc/x.json': cannot write there"),
        (["bench", "all_reduce", "--address", "nowhere"], "--address nowhere: write HOST:PORT"),
        (["calibrate", "--address", "127.0.0.1:1"], "--address 127.0.0.1:1: nothing answers there"),
        (["predict", "all_reduce", "--fabric", "star", "--map", "a0,a1", "--ranks", "4"], "--ranks 4 contradicts --map"),
        (["predict", "all_reduce", "--fabric", "star", "--map", "shufle"], "did you mean 'shuffle'"),
        (["predict", "all_reduce", "--switching", "drop"], "--set switching=NAME; emu compare --switching"),
        (["predict", "all_reduce", "--fabric", "clos", "--set", "ranks=32"], "ranks follow from leaves x accelerators_per_leaf"),
        (["predict", "all_reduce", "--fabric", "torus", "--set", "ranks=32"], "ranks follow from shape here"),
        (["predict", "all_reduce", "--fabric", "star", "--set", "alhpa=1"], "did you mean 'alpha'"),
        (["fabrics", "tors"], "did you mean 'torus'"),
        (["fabrics", "--set", "a=b"], "emu fabrics NAME"),
        (["rerun", "/no/such/run.json"], "cannot be read as a run file"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong flag or value exits 2 with one line on stderr that helps, nothing on stdout, and no traceback."""
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("emu: ")
    assert message in err


def test_table_on_stdout_and_nothing_else(opener: FakeOpener, capsys: pytest.CaptureFixture[str]) -> None:
    """A good run exits 0; stdout holds the table, stderr is empty when it is no terminal."""
    assert cli.main(STAR) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines() if not line.startswith("#")] == ["1024", "2048"]
    assert err == ""
    assert all(session.n_closed == 1 for _, session in opener.sessions)


@pytest.mark.parametrize(
    ("how", "extra", "code"),
    [
        ({}, [], 0),
        ({"late": {0.0: 0.5}}, [], 0),
        ({"late": {0.0: 0.5}}, ["--strict"], 5),
        ({"n_wrong": 1}, [], 3),
        ({"fails": Deadlock("rank 0 and rank 1 wait for each other")}, [], 1),
        ({"fails": KeyboardInterrupt()}, [], 130),
    ],
)
def test_exit_codes(
    opener: FakeOpener, capsys: pytest.CaptureFixture[str], how: dict[str, object], extra: list[str], code: int
) -> None:
    """0 ok or degraded, 5 degraded with --strict, 3 wrong data, 1 failed, 130 interrupted; sessions are closed in every case."""
    opener.how = how
    assert cli.main([*STAR, *extra]) == code
    assert all(session.n_closed == 1 for _, session in opener.sessions)
    err = capsys.readouterr().err
    assert "Traceback" not in err and (err != "") == (code in (1, 130))


def test_threshold_exits_4(opener: FakeOpener, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An average below the threshold of NCCL_TESTS_MIN_BW exits 4 and the footer says so."""
    monkeypatch.setenv("NCCL_TESTS_MIN_BW", "400")
    assert cli.main(STAR) == 4
    assert "FAILED (at least 0.9 x 400 asked for)" in capsys.readouterr().out


def test_predict_simulates(opener: FakeOpener) -> None:
    """predict is bench with the simulating driver; bench emulates unless it is told otherwise."""
    cli.main(["predict", *STAR[1:]])
    assert [simulate for simulate, _ in opener.sessions] == [True]
    opener.sessions.clear()
    cli.main([*STAR, "--dilation", "1"])
    assert [simulate for simulate, _ in opener.sessions] == [False]


def test_every_option_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each flag reaches its option, sizes in binary letters."""
    got = []
    monkeypatch.setattr(commands, "bench", lambda options, **how: got.append((options, how)) or 0)
    text = (
        "bench reduce -b 8 -e 64M -f 8 -i 2K -n 5 -w 2 -c 0 -o max -d half -r 1 -a 3 -I 1 --fabric star --fabric torus"
        " --set star.ranks=4 --ranks 3 --map shuffle --impair a0->s0=latency,added=1us --algorithm ring --channels 2 --chunk 64K"
        " --driver simulate --dilation 2.5 --accelerators-per-actor 4 --timeout 9 --seed 5 --seeds 3"
        " --strict --json r.json --run-file f"
    )
    assert cli.main(text.split()) == 0
    options, how = got[0]
    assert options == commands.BenchOptions(
        collective="reduce", begin_bytes=8, end_bytes=64 << 20, step_factor=8, step_bytes=2048, iterations=5, warmup=2,
        check=False, op="max", dtype="half", root=1, average=3, per_iteration=True, fabrics=("star", "torus"),
        settings=(("star.ranks", "4"),), n_ranks=3, rank_map="shuffle", impairments=("a0->s0=latency,added=1us",),
        algorithm="ring", channels=2, chunk_bytes=65536, driver="simulate", dilation=2.5, accelerators_per_actor=4,
        timeout_s=9.0, seed=5, n_seeds=3, strict=True,
    )  # fmt: skip
    assert (how["json_path"], how["run_path"]) == (Path("r.json"), Path("f"))


def test_json_and_run_file_are_told_on_stderr(opener: FakeOpener, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The paths that were written are printed, on stderr, and the run file can be read again."""
    json_path, run_path = tmp_path / "r.json", tmp_path / "run.json"
    json_path.write_text("mine")
    assert cli.main([*STAR, "--json", str(json_path), "--run-file", str(run_path)]) == 0
    err = capsys.readouterr().err
    assert f"# json output: {json_path}.0 ({json_path} was there already, and is kept)\n" in err
    assert f"# run file: {run_path}\n" in err
    assert json_path.read_text() == "mine"
    assert commands.run_file.read(run_path).options.begin_bytes == 1024


def test_fabrics_lists_and_describes(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a name every fabric is listed; with one its rates and the sources of its numbers are shown."""
    assert cli.main(["fabrics"]) == 0
    listing = capsys.readouterr().out
    assert "dgx-h100-8" in listing and "torus" in listing
    assert all(f"\n  {name} " in listing for name in ("dcqcn", "adaptive", "jitter", "halving_doubling"))
    assert cli.main(["fabrics", "dgx-h100-8"]) == 0
    described = capsys.readouterr().out
    assert "450 GB/s" in described and "sources" in described and "calibration" in described
    assert cli.main(["fabrics", "tpu-v3-1024"]) == 0
    assert "\n    16               8 times the bisection per rank, diameter 4 links\n" in capsys.readouterr().out
    assert cli.main(["fabrics", "torus", "--set", "shape=2x2"]) == 0
    assert "ranks              4" in capsys.readouterr().out


@pytest.mark.parametrize("name", [*generic_topologies(), "switching"])
def test_fabrics_lists_all_parameters(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every topology lists its parameters, and ``switching`` its keys, each with a default and a meaning."""
    assert cli.main(["fabrics", name]) == 0
    listed = {line.split()[0]: line.split("  ") for line in capsys.readouterr().out.splitlines() if line.startswith("    ")}
    keys = SWITCHING_KEYS if name == "switching" else tuple(generic_topologies()[name].parameters.model_fields)
    assert set(keys) <= set(listed)
    assert all(len([part for part in listed[key] if part]) == 3 for key in keys)


def test_what_a_session_refuses_has_no_heading(capsys: pytest.CaptureFixture[str]) -> None:
    """Headroom that the delays of impairments exceed is told in one line, and no table begins."""
    fabric = ["--fabric", "star", "--set", "ranks=2", "--set", "latency=2us", "--set", "discipline=pause"]
    assert cli.main(["predict", "gather", *fabric, "--impair", "*=latency,added=1ms", "-b", "1K", "-e", "1K"]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("emu: headroom = ") and printed.err.count("\n") == 1


def test_calibration_that_cannot_be_kept_is_no_failure(
    opener: FakeOpener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """When the cache folder cannot be written the run goes on and says that the next one measures again."""
    (tmp_path / "emu").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(calibrate, "load", lambda path: None)
    monkeypatch.setattr(calibrate, "measure", lambda opened: CALIBRATION)
    assert cli.main(STAR) == 0
    assert "cannot be kept" in capsys.readouterr().err


def test_help_loses_no_words() -> None:
    """No option's help has words in brackets, which would be taken for markup and left out."""
    program = typer.main.get_command(app)
    helps = [getattr(option, "help", "") or "" for command in program.commands.values() for option in command.params]
    assert len(helps) > 100
    assert [text for text in helps if "[" in text] == []


def test_help_is_light() -> None:
    """Asking for help imports neither Ray nor ZeroMQ nor numpy."""
    code = "import sys; from emu.cli import main; main(['--help']); print(sorted({'ray', 'zmq', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "emu demo" in done.stdout


def test_a_closed_stdout_is_one_line_and_exit_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Started with stdout closed (``>&-``), a command says so and does nothing: data would have nowhere to go."""
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(["fabrics"]) == 1
    assert capsys.readouterr().err == "emu: stdout is closed, and data goes there; redirect it to /dev/null instead\n"
