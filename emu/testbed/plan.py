"""Plan: what a testbed is, as ``emu up`` was told; and how a run's own options go with it.

Law: a run on a testbed has its fabric.  What is fixed when the actors start may be repeated, not changed; what each run may
choose is the testbed's where the run does not say.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Final

from emu.bench.options import BenchOptions
from emu.errors import ConfigError

FIXED: Final = {
    "--fabric": "fabrics",
    "--set": "settings",
    "--protocol": "settings",
    "--tuner": "settings",
    "--ranks": "n_ranks",
    "--map": "rank_map",
    "--impair": "impairments",
    "--fault": "faults",
    "--faults": "faults",
    "--accelerators-per-actor": "accelerators_per_actor",
    "--transport": "transport",
    "--address": "address",
    "--metrics": "metrics",
    "--metrics-names": "metrics_names",
    "--timeout": "timeout_s",
    "--seed": "seed",
    "--seeds": "n_seeds",
}
"""Flag -> option that a testbed has for all its runs."""
INHERITED: Final = {"--dilation": "dilation"}
"""Flag -> option that a run takes from its testbed unless it is given one."""
ENVIRONMENT: Final = ("NCCL_", "EMU_")
"""A client's variables with these prefixes hold for its run, in place of the testbed's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestbedPlan:
    """``options`` are those of the fabric and the emulation; their collective says nothing.
    ``ttl_s``: wall time without a run after which the testbed ends, None for ever."""

    __test__ = False  # no test, whatever pytest makes of the name

    options: BenchOptions
    ttl_s: float | None = None

    def __post_init__(self) -> None:
        if self.ttl_s is not None and not 1 <= self.ttl_s <= 366 * 86400:
            raise ConfigError(f"--ttl {self.ttl_s:g} must be from 1 second to a year, in seconds; leave it out to stay for ever")

    def as_plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"options": self.options.as_plain(), "ttl_s": self.ttl_s}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> TestbedPlan:
        """Raises ConfigError."""
        try:
            return cls(**{**plain, "options": BenchOptions.from_plain(plain["options"], where="emu up")})
        except (TypeError, KeyError) as error:
            raise ConfigError(f"the testbed's plan does not fit: {error}") from None


def run_options(name: str, testbed: BenchOptions, run: BenchOptions, given: Collection[str]) -> BenchOptions:
    """``run`` on the testbed ``name``: its fabric and, where a flag is not among those ``given``, its ways.

    Raises ConfigError for a flag that contradicts the testbed.
    """
    if "--record" in given:
        raise ConfigError("--record needs a session that records from its start; leave --session out")
    for flag, field in FIXED.items():
        wanted, there = getattr(run, field), getattr(testbed, field)
        if flag in given and wanted != there:
            raise ConfigError(
                f"{flag} {_shown(wanted)} contradicts testbed {name!r}, which has {_shown(there)};"
                f" leave {flag} out, or start another testbed with emu up"
            )
    taken = [*FIXED.values(), "protocol", *(field for flag, field in INHERITED.items() if flag not in given)]
    if run.simulated:
        taken = [field for field in taken if field not in ("address", "metrics")]  # it runs in the testbed's own process
    return replace(run, **{field: getattr(testbed, field) for field in taken})


def _shown(value: object) -> str:
    """A value as it was typed."""
    if value is None:
        return "the default"
    if isinstance(value, tuple):
        return " ".join("=".join(part) if isinstance(part, tuple) else str(part) for part in value) or "the default"
    return f"{value:g}" if isinstance(value, float) else str(value)
