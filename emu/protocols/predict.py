"""Predict: the protocol and algorithm of the smallest time by emu's own costs, in closed form.

A call of ``steps`` dependent messages that sends ``sent`` S in all, each message in k slices of ``c``::

    time = launch + max(steps (step + message + c / rate) + (k - 1) c / rate,  sent S / rate + step)

the first where latency decides, the second where the line does.  The links' own latency, which is the same for every protocol,
is left out, as is the proxy's time between hosts.  Grouped messages are issued one after the other and go at the same time.
Where the algorithm is open it is :mod:`emu.drivers.choice` that simulates them; this file then only chooses among protocols.
"""

from __future__ import annotations

from emu.protocols.costs import SLICES, charges
from emu.protocols.legal import Protocol, is_grouped
from emu.protocols.question import Choice, Question, Way
from emu.units import duration_ps


def choose(question: Question) -> Choice:
    """The pair of the smallest estimate; of equal ones the first."""
    return min(
        (
            Choice(way.algorithm, protocol, estimate_ps(question, way, protocol))
            for way in question.ways
            for protocol in way.protocols
        ),
        key=lambda choice: choice.time_ps,
    )


def estimate_ps(question: Question, way: Way, protocol: str) -> int:
    """The module's formula."""
    its = charges(question.costs, question.collective, way.algorithm, protocol, question.n_hosts)
    steps = max(1, way.steps)
    sent_bytes = int(way.sent * question.size_bytes)
    if is_grouped(question.collective, way.algorithm):
        peers = max(1, question.n_ranks - 1)
        receipts = steps - 1 if its.stores_directly else steps
        paced_ps = max(
            duration_ps(sent_bytes // (steps * peers), its.message_rate_bps), duration_ps(sent_bytes // steps, its.rate_bps)
        )
        return its.launch_ps + steps * (peers * its.message_ps + paced_ps) + receipts * its.step_ps
    slices = SLICES[Protocol(protocol)]
    rate_bps = its.message_rate_bps * its.lanes
    slice_ps = duration_ps(sent_bytes // (steps * slices), rate_bps)
    step_ps = its.receipt_ps(sent_bytes // steps) + its.message_ps
    return its.launch_ps + max(
        steps * (step_ps + slice_ps) + (slices - 1) * slice_ps, duration_ps(sent_bytes, rate_bps) + step_ps
    )
