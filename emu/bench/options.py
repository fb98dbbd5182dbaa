"""What one benchmark run is asked to do, checked before anything starts.

The letters and defaults are nccl-tests'; the rest is emu's.  Everything here is plain
data, so that a run file can hold it and ``emu rerun`` repeat it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from emu.bench.data import nccl_dtype
from emu.bench.layout import reduces, rooted
from emu.collectives.busbw import SHARED, WHOLE
from emu.collectives.call import check_chunk_bytes
from emu.collectives.catalogue import collective_name
from emu.collectives.reduce import check_op
from emu.errors import ConfigError
from emu.faults.schedule import read_schedule
from emu.faults.spec import parse_fault
from emu.parameters import did_you_mean
from emu.protocols.selection import check_protocol
from emu.telemetry.file_sd import METRICS_NAMES, check_metrics_names, parse_endpoint
from emu.units import parse_nccl_size_bytes

DRIVERS: Final = ("emulate", "simulate")
METHODS: Final = ("auto", "full", "vectorised")
"""How a simulation goes: auto runs the loop while that takes about a minute, else one call as fast as is exact."""
ALGORITHM_VARIABLE: Final = "NCCL_ALGO"
PROTOCOL_VARIABLE: Final = "NCCL_PROTO"
NO_ALGORITHM: Final = ("alltoallv", "sendrecv")
"""Collectives whose messages are as they are."""
_WITH_ALGORITHMS: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"})
TRANSPORTS: Final = ("auto", "ipc", "tcp")
DEFAULT_FABRIC: Final = "dgx-h100-8"
MAX_SIZE_BYTES: Final = 1 << 40
MAX_ROWS: Final = 10_000
"""More rows than this are a slip of -i rather than a wish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """One run of ``emu bench`` or ``emu predict``.  Raises ConfigError for what cannot be meant.

    ``step_factor`` and ``step_bytes``: how sizes grow (-f, -i); the factor wins where it is more than 1.
    ``protocol``: what NCCL_PROTO says; it counts on fabrics with an endpoint, where no setting names a protocol.
    ``dilation`` None is ``auto`` and 0 is unpaced; ``check`` None: wherever there is payload by default.
    """

    collective: str
    begin_bytes: int = 32 << 20
    end_bytes: int = 32 << 20
    step_factor: float = 1
    step_bytes: int = 1 << 20
    iterations: int = 20
    warmup: int = 1
    check: bool | None = None
    op: str = "sum"
    dtype: str = "float"
    root: int = 0
    average: int = 1
    per_iteration: bool = False
    fabrics: tuple[str, ...] = (DEFAULT_FABRIC,)
    settings: tuple[tuple[str, str], ...] = ()
    n_ranks: int | None = None
    rank_map: str | None = None
    algorithm: str = "auto"
    protocol: str | None = None
    channels: int = 1
    chunk_bytes: int | None = None
    driver: str = "emulate"
    method: str = "auto"
    dilation: float | None = None
    accelerators_per_actor: int | None = None
    transport: str = "auto"
    seed: int = 0
    n_seeds: int = 1
    impairments: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    address: str | None = None
    metrics: str | None = None
    metrics_names: str = METRICS_NAMES[0]
    timeout_s: float = 30.0
    strict: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "collective", bench_collective(self.collective))
        object.__setattr__(self, "dtype", nccl_dtype(self.dtype))
        check_op(self.op)
        if self.protocol is not None:
            object.__setattr__(self, "protocol", _checked_protocol(self.protocol))
        _within("-b", self.begin_bytes, 0, MAX_SIZE_BYTES)
        _within("-e", self.end_bytes, 0, MAX_SIZE_BYTES)
        if self.end_bytes < self.begin_bytes:
            raise ConfigError(f"-e {self.end_bytes} is less than -b {self.begin_bytes}; sizes go up from -b to -e")
        if not (self.step_factor == 1 or 1 < self.step_factor <= 1024):
            raise ConfigError(f"-f {self.step_factor:g}: the factor must be more than 1 and at most 1024; for equal steps use -i")
        _within("-i", self.step_bytes, 1, MAX_SIZE_BYTES)
        if self.step_factor == 1 and (self.end_bytes - self.begin_bytes) // self.step_bytes >= MAX_ROWS:
            raise ConfigError(f"-i {self.step_bytes} gives more than {MAX_ROWS} rows; use a larger step, or a factor with -f")
        _within("-n", self.iterations, 1, 1_000_000)
        _within("-w", self.warmup, 0, 1_000_000)
        _within("-a", self.average, 0, 3)
        _within("-r", self.root, 0, 1_000_000)
        _within("--channels", self.channels, 1, 64)
        _within("--seeds", self.n_seeds, 1, 10_000)
        _within("--seed", self.seed, 0, 2**63 - 1)
        if self.n_ranks is not None:
            _within("--ranks", self.n_ranks, 1, 1_000_000)
        if self.chunk_bytes is not None:
            check_chunk_bytes(self.chunk_bytes)
        if self.accelerators_per_actor is not None:
            _within("--accelerators-per-actor", self.accelerators_per_actor, 1, 1_000_000)
        if self.driver not in DRIVERS:
            raise ConfigError(f"--driver {self.driver!r}: use one of {', '.join(DRIVERS)}{did_you_mean(self.driver, DRIVERS)}")
        if self.method not in METHODS:
            raise ConfigError(f"--method {self.method!r}: use one of {', '.join(METHODS)}{did_you_mean(self.method, METHODS)}")
        if self.transport not in TRANSPORTS:
            raise ConfigError(
                f"--transport {self.transport!r}: use one of {', '.join(TRANSPORTS)}{did_you_mean(self.transport, TRANSPORTS)}"
            )
        if self.dilation is not None and not 0 <= self.dilation <= 1e12:
            raise ConfigError(f"--dilation {self.dilation:g} must be auto, or from 0 (unpaced) to 1e12")
        if not 0 < self.timeout_s <= 86_400:
            raise ConfigError(f"--timeout {self.timeout_s:g} must be more than 0 and at most 86400 seconds")
        if not self.fabrics:
            raise ConfigError("no fabric; name one with --fabric (emu fabrics lists them)")
        if self.metrics is not None:
            parse_endpoint(self.metrics)
            if self.driver == "simulate":
                raise ConfigError(f"--metrics {self.metrics!r} is for --driver emulate; a simulation is over too soon")
        check_metrics_names(self.metrics_names)
        if self.driver == "simulate" and self.address is not None:
            raise ConfigError(f"--address {self.address!r} is for --driver emulate; a simulation runs in this process")

    @property
    def simulated(self) -> bool:
        return self.driver == "simulate"

    @property
    def payload(self) -> bool:
        """Whether real data moves: always when emulated; in a simulation only if -c 1 asks for its check."""
        return not self.simulated or bool(self.check)

    @property
    def checks(self) -> bool:
        """Whether results are checked on every rank."""
        return self.payload and self.check is not False

    @property
    def reduction(self) -> str | None:
        """The op, or None where the collective has none."""
        return self.op if reduces(self.collective) else None

    @property
    def printed_root(self) -> int:
        """nccl-tests' root column: -1 where the collective has none."""
        return self.root if rooted(self.collective) else -1

    def as_plain(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any], *, where: str = "run file") -> BenchOptions:
        """Back from JSON.  Raises ConfigError for a key or a type that does not belong here."""
        known = {field.name for field in fields(cls)}
        for key in plain:
            if key not in known:
                raise ConfigError(f"{where}: option {key!r} is not known{did_you_mean(key, known)}")
        values = dict(plain)
        for key in ("fabrics", "impairments", "faults"):
            if key in values:
                values[key] = tuple(values[key])
        if "settings" in values:
            values["settings"] = tuple((str(key), str(value)) for key, value in values["settings"])
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"{where}: its options do not fit: {error}") from None


def bench_collective(text: str) -> str:
    """The collective that is meant (``AllReduce``, ``all_reduce_perf``).  Raises ConfigError; barrier has no bandwidth."""
    known = sorted(WHOLE | SHARED)
    plain = text.lower().removesuffix("_perf").replace("_", "").replace("-", "")
    if plain == "sendrecv":
        return plain
    return collective_among(text, known, "bench")


def collective_among(text: str, known: Sequence[str], what_for: str) -> str:
    """One of the ``known``, which are those to bench, to tune.  Raises ConfigError for any other."""
    with suppress(ConfigError):
        if (name := collective_name(text)) in known:
            return name
    raise ConfigError(f"{text!r} is not a collective to {what_for}{did_you_mean(text, known)}; use one of {', '.join(known)}")


def parse_settings(texts: Iterable[str], **others: str | None) -> tuple[tuple[str, str], ...]:
    """``["ranks=8", "rate=1GB/s"]`` -> pairs; only parameters of a control or balancing may be empty.  Raises ConfigError.

    ``others`` are settings that have options of their own; None where they were not given.
    """
    pairs = []
    for text in (*texts, *(f"{key}={value}" for key, value in others.items() if value is not None)):
        key, equals, value = text.partition("=")
        if not equals or not key.strip() or not (value.strip() or key.endswith("_parameters")):
            raise ConfigError(f"--set {text!r} must be key=value, for example --set ranks=16 --set rate=50GB/s")
        pairs.append((key.strip(), value.strip()))
    return tuple(pairs)


def given_faults(texts: Iterable[str] | None, schedule: Path | None) -> tuple[str, ...]:
    """Faults of ``--fault`` and of the file of ``--faults``, as data that a run file can hold.  Raises ConfigError."""
    faults = (*(texts or ()), *(() if schedule is None else read_schedule(schedule)))
    for text in faults:
        parse_fault(text)
    return faults


def given_algorithm(text: str | None, collective: str, environment: Mapping[str, str] | None = None) -> str:
    """What --algorithm says, else NCCL_ALGO; that is not for what NCCL makes of grouped sends and receives."""
    if text is not None:
        return text
    return _said(ALGORITHM_VARIABLE, collective, environment) or "auto"


def given_protocol(collective: str, environment: Mapping[str, str] | None = None) -> str | None:
    """What NCCL_PROTO says, if anything, with NCCL_ALGO's exception."""
    return _said(PROTOCOL_VARIABLE, collective, environment) or None


def _said(variable: str, collective: str, environment: Mapping[str, str] | None) -> str:
    said = (os.environ if environment is None else environment).get(variable, "").strip()
    return said if said and bench_collective(collective) in _WITH_ALGORITHMS else ""


def _checked_protocol(text: str) -> str:
    try:
        return check_protocol(text)
    except ConfigError as error:
        raise ConfigError(f"{PROTOCOL_VARIABLE}: {error}") from None


def parse_auto(flag: str, text: str) -> float | None:
    """``auto`` -> None, else a number.  Raises ConfigError."""
    if text.strip().lower() == "auto":
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"{flag} {text!r} must be auto or a number")
    return value


def parse_size_bytes(flag: str, text: str) -> int:
    """nccl-tests' sizes, ``64M`` is 64 * 2^20 bytes.  Raises ConfigError that names the flag."""
    try:
        return parse_nccl_size_bytes(text)
    except ConfigError as error:
        raise ConfigError(f"{flag} {error}") from None


def parse_count(flag: str, text: str) -> int | None:
    """``auto`` -> None, else a whole number.  Raises ConfigError."""
    value = parse_auto(flag, text)
    if value is None:
        return None
    if value != int(value):
        raise ConfigError(f"{flag} {text!r} must be auto or a whole number")
    return int(value)


def parse_switch(flag: str, value: int) -> bool:
    """nccl-tests' switches are 0 or 1.  Raises ConfigError."""
    _within(flag, value, 0, 1)
    return value == 1


def _within(flag: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ConfigError(f"{flag} {value} must be from {least} to {most}")
