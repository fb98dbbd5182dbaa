"""What is refused before a run on a fabric with a switching begins: losses that the quantum multiplies, timers without end."""

from __future__ import annotations

import pytest

from emu.drivers.switching_guard import check_run
from emu.errors import ConfigError
from emu.impairments.spec import parse_impairment, resolve
from emu.topologies.fabric_file import load_fabric

STAR = {"ranks": "2", "rate": "100Gbit/s", "latency": "1us", "mtu": "1KiB", "discipline": "drop"}


def checked(settings: dict[str, str], *impairments: str) -> None:
    topology = load_fabric("star", STAR | settings)
    check_run(topology, resolve([parse_impairment(spec) for spec in impairments], topology))


def refused(settings: dict[str, str], *impairments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        checked(settings, *impairments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_loss_that_most_packets_of_a_quantum_meet_is_refused() -> None:
    """Of packets of 8 MTUs, 10 % loss takes 1 - 0.9^8 = 57 %: more than half; the line says what to set."""
    text = refused({"quantum": "8KiB"}, "a0->s0=loss,probability=0.1")
    assert text.startswith("loss of 0.1 of the MTUs on a0->s0: a packet is lost with any of its 8 MTUs, which is 57 % of packets")
    assert "set quantum = 1024 (the MTU), or link_retry = true" in text


@pytest.mark.parametrize(
    ("settings", "loss"),
    [
        ({"quantum": "4KiB"}, "probability=0.1"),  # 34 %
        ({"quantum": "1KiB"}, "probability=0.5"),
        ({"quantum": "8KiB", "link_retry": "true"}, "probability=0.1"),
        ({"quantum": "8KiB"}, "pattern=1"),  # comes when it is sent again
    ],
)
def test_loss_that_half_of_the_packets_pass_is_taken(settings: dict[str, str], loss: str) -> None:
    """With a smaller quantum, one MTU each, links that repeat, or losses of the first sending only."""
    checked(settings, f"a0->s0=loss,{loss}")


def test_two_losses_on_one_link_count_together() -> None:
    """Each alone leaves more than half of the packets, both together less."""
    one, other = "a0->s0=loss,probability=0.06", "a0->s0=loss,probability=0.05"
    checked({"quantum": "8KiB"}, one)
    checked({"quantum": "8KiB"}, other)
    assert refused({"quantum": "8KiB"}, one, other).startswith("loss of 0.107 of the MTUs on a0->s0")


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"timeout": "3e6s"}, "class data: timeout = 3e+06 s"),
        ({"discipline": "pause", "watchdog_detection": "3e6s"}, "watchdog_detection = 3e+06 s"),
        ({"discipline": "pause", "watchdog_detection": "1ms", "watchdog_restoration": "3e6s"}, "watchdog_restoration = 3e+06 s"),
        ({"reroute": "3e6s"}, "reroute = 3e+06 s"),
    ],
)
def test_a_timer_that_outlasts_a_run_is_refused(settings: dict[str, str], name: str) -> None:
    """Before anything is printed, with the key, the value and the most that is allowed."""
    assert refused(settings).startswith(f"{name} is longer than a run can be; use 1152921s or less")
