"""How users write what an accelerator's own work costs: the ``[endpoint]`` table of a fabric file, and two keys of ``--set``.

Law: checked before anything starts; left out, it costs nothing.  Every key but ``rate`` may be left out::

    [endpoint]
    rate = "360GB/s"            # what a ring's kernels put on the way with Simple; LL128 15/16 of it
    ll_rate = "139GB/s"         # with LL; default half of rate, as every 4 bytes carry 4 of flag
    p2p_rate = "293GB/s"        # grouped sends and receives; channel_rate: one message of theirs with LL; nvls_rate
    copy_rate = "1100GB/s"      # to its own memory; reduction_rate: left out, reductions hide behind what is sent
    launch = "4.7us"            # and with Simple setup, with grouped sends group_setup, where the switch reduces nvls_setup
    message = "200ns"           # to issue one
    step = "4us"                # from a message's arrival to its use with Simple; ll_step (block_step more when long), ll128_step
    network_slot = "800ns"      # of the host's proxy for each slot of a channel that leaves the host or comes to it
    channels = 24               # that share the rate; host_channels: of a call across hosts, two for each network port
    generation = "hopper"       # what NCCL's tuner looks at: interconnect, tuner_rate, channels
    protocol = "auto"           # simple, ll, ll128, or as in NCCL_PROTO; of what that leaves (auto: all) the tuner takes one
    tuner = "predict"           # or nccl
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

import emu.protocols
from emu.errors import ConfigError
from emu.parameters import RateBps, TimePs, as_text, did_you_mean, validate
from emu.protocols.costs import EndpointCosts, Generation, Interconnect
from emu.protocols.legal import AUTO
from emu.protocols.question import Choice, Question
from emu.protocols.selection import check_protocol
from emu.topologies.folder import read_folder
from emu.units import format_rate, format_time

ENDPOINT_SETTINGS: Final = ("protocol", "tuner")


def _checked(name: str) -> str:
    try:
        return check_protocol(name)
    except ConfigError as error:
        raise ValueError(str(error)) from None


def tuner_names() -> tuple[str, ...]:
    """The tuners there are: files of ``emu/protocols`` with a function ``choose``."""
    return tuple(name for name, module in read_folder(emu.protocols).modules.items() if callable(vars(module).get("choose")))


def find_tuner(name: str) -> Callable[[Question], Choice | None]:
    """It answers None where it knows none of the question's algorithms.  Raises ConfigError."""
    names = tuner_names()
    if name not in names:
        raise ConfigError(f"tuner {name!r}{did_you_mean(name, names)}: use one of {', '.join(names)}")
    found: Callable[[Question], Choice | None] = vars(read_folder(emu.protocols).modules[name])["choose"]
    return found


def _is_tuner(name: str) -> str:
    try:
        find_tuner(name)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    return name


class EndpointTable(BaseModel):
    """The keys, as written."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rate: RateBps
    launch: TimePs = 0
    message: TimePs = 0
    setup: TimePs = 0
    group_setup: TimePs = 0
    step: TimePs = 0
    ll_step: TimePs = 0
    ll128_step: TimePs = 0
    block_step: TimePs = 0
    ll_rate: RateBps | None = None
    p2p_rate: RateBps | None = None
    channel_rate: RateBps | None = None
    copy_rate: RateBps | None = None
    reduction_rate: RateBps | None = None
    nvls_setup: TimePs = 0
    nvls_rate: RateBps | None = None
    network_slot: TimePs = 0
    channels: int = Field(default=24, ge=1, le=64)
    host_channels: int | None = Field(default=None, ge=1, le=64)
    generation: Generation = Generation.HOPPER
    interconnect: Interconnect = Interconnect.NVLINK
    tuner_rate: RateBps | None = None
    protocol: Annotated[str, AfterValidator(_checked)] = AUTO
    tuner: Annotated[str, AfterValidator(_is_tuner)] = "predict"


def endpoint_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Those of ``--set``'s keys that are an endpoint's."""
    return {key: text for key, text in settings.items() if key in ENDPOINT_SETTINGS}


def read_endpoint(table: Mapping[str, object], settings: Mapping[str, str], *, where: str) -> EndpointCosts | None:
    """The table with ``--set``'s keys over it; None where there is neither.  Raises ConfigError."""
    if not table:
        if settings:
            key, value = next(iter(settings.items()))
            raise ConfigError(
                f"--set {key}={value}: {where} has no [endpoint], so all protocols cost the same; add one, or leave it out"
            )
        return None
    values = {key: as_text(value) for key, value in table.items()} | dict(settings)
    its = validate(EndpointTable, values, where=f"{where}: [endpoint]", where_by_key=dict.fromkeys(settings, "--set"))
    plain = its.model_dump()
    return EndpointCosts(**{_with_unit(key): value for key, value in plain.items()})


def write_endpoint(costs: EndpointCosts) -> str:
    """The table of ``costs``, without what is as left out."""
    lines = ["[endpoint]"]
    default = EndpointTable(rate=1)
    for key in EndpointTable.model_fields:
        value = getattr(costs, _with_unit(key))
        if key == "rate" or value != getattr(default, key):
            lines.append(f"{key} = {_written(key, value)}")
    return "\n".join(lines) + "\n"


def _is_time(key: str) -> bool:
    return EndpointTable.model_fields[key].annotation is int and key != "channels"


def _with_unit(key: str) -> str:
    return f"{key}_bps" if key.endswith("rate") else f"{key}_ps" if _is_time(key) else key


def _written(key: str, value: object) -> str:
    if isinstance(value, int) and not key.endswith("channels"):
        text = format_rate(value) if key.endswith("rate") else format_time(value)
        return f'"{text.replace(" ", "")}"'
    return str(value) if isinstance(value, int) else f'"{value}"'
