"""The faults of one session: what is scheduled, what was added while it ran, when each took effect.

Law: a schedule begins anew with every fresh model.  A fault that was added live holds on over fresh models, until its duration,
in model time over all runs, is used up or it is cleared.  Used by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from emu.errors import ConfigError
from emu.faults.base import Target
from emu.faults.spec import Injection, Spec, parse_fault, place
from emu.topologies.graph import Topology
from emu.units import format_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What one component suffers, in model time since the last ``begin``.  ``end_ps`` None: until it is cleared."""

    component: str
    begin_ps: int
    end_ps: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRecord:
    """One fault of a session.  ``effects`` is empty while it has not taken effect; ``nodes``: whose actors carry it out."""

    number: int
    text: str
    kind: str
    components: tuple[str, ...]
    nodes: tuple[str, ...]
    is_live: bool
    is_cleared: bool
    effects: tuple[Effect, ...]
    schedule: tuple[str, ...]
    """The same faults as a schedule has them, by component, at the times at which they took effect."""

    def __str__(self) -> str:
        when = ", ".join(sorted({_when(effect) for effect in self.effects})) or "not in effect"
        what = ", ".join(self.components[:6]) + (f", ... ({len(self.components)} in all)" if len(self.components) > 6 else "")
        return f"{self.number}  {self.text}  on {what}: {when}{', cleared' if self.is_cleared else ''}"


def _when(effect: Effect) -> str:
    return f"from {format_time(effect.begin_ps)}" + ("" if effect.end_ps is None else f" to {format_time(effect.end_ps)}")


@dataclass(slots=True)
class Entry:
    """A fault in the book."""

    number: int
    spec: Spec
    injections: tuple[Injection, ...]
    is_live: bool
    is_cleared: bool = False
    effects: dict[str, Effect] = field(default_factory=dict)

    def took_effect(self, times_ps: Mapping[str, int]) -> None:
        """When it did, by component."""
        for one in self.injections:
            if one.component in times_ps:
                begin_ps = times_ps[one.component]
                self.effects[one.component] = Effect(component=one.component, begin_ps=begin_ps, end_ps=one.end_ps(begin_ps))

    def ends(self, now_ps: int) -> None:
        """It is cleared."""
        self.is_cleared = True
        for name, effect in self.effects.items():
            if effect.end_ps is None or effect.end_ps > now_ps:
                self.effects[name] = replace(effect, end_ps=max(now_ps, effect.begin_ps))

    def carry_over(self, elapsed_ps: int) -> None:
        """A fresh model begins after ``elapsed_ps`` of the old one: what is left of a live fault holds from its start."""
        left = []
        for one in self.injections:
            effect = self.effects.get(one.component)
            begin_ps = elapsed_ps if effect is None else min(effect.begin_ps, elapsed_ps)
            if one.for_ps is None:
                left.append(replace(one, begin_ps=0))
            elif one.for_ps > elapsed_ps - begin_ps:
                left.append(replace(one, begin_ps=0, for_ps=one.for_ps - (elapsed_ps - begin_ps)))
        self.injections = tuple(left)


class FaultBook:
    """``texts``: the schedule.  Raises ConfigError for what it cannot mean on this fabric."""

    def __init__(self, topology: Topology, texts: Iterable[str]) -> None:
        self._topology = topology
        self._entries: list[Entry] = []
        for text in texts:
            self.add(self.propose(text, is_live=False))

    def propose(self, text: str, *, is_live: bool = True) -> Entry:
        """What a fault would be, not in the book yet."""
        spec, number = parse_fault(text), len(self._entries) + 1
        return Entry(number, spec, place(spec, self._topology, number=number), is_live)

    def add(self, entry: Entry) -> None:
        self._entries.append(entry)

    def injections(self) -> tuple[Injection, ...]:
        """All that is not cleared."""
        return tuple(one for entry in self._entries if not entry.is_cleared for one in entry.injections)

    def begin(self, elapsed_ps: int, alive: Iterable[int]) -> tuple[Injection, ...]:
        """What a fresh model starts with, after ``elapsed_ps`` of the old one: nothing of or for ranks that are gone."""
        ranks = set(alive)
        for entry in self._entries:
            if entry.is_live and not entry.is_cleared:
                entry.carry_over(elapsed_ps)
            entry.injections = tuple(one for one in entry.injections if {one.rank, one.peer} - {-1} <= ranks)
            entry.effects.clear()
            if not entry.is_cleared:
                entry.took_effect({one.component: one.begin_ps for one in entry.injections})
        return self.injections()

    def chosen(self, number: int | None) -> tuple[Entry, ...]:
        """The fault of that number, or all, that are not cleared.  Raises ConfigError where there is none such."""
        numbers = [entry.number for entry in self._entries if not entry.is_cleared]
        if number is not None and number not in numbers:
            there = f"there are {', '.join(map(str, numbers))}" if numbers else "there are none"
            raise ConfigError(f"fault {number}: no fault of that number is to be cleared; {there}")
        return tuple(e for e in self._entries if not e.is_cleared and number in (None, e.number))

    def records(self) -> tuple[FaultRecord, ...]:
        """All faults in the order of their numbers."""
        return tuple(self.record(entry) for entry in self._entries)

    def record(self, entry: Entry) -> FaultRecord:
        """What is known of one."""
        topology, spec = self._topology, entry.spec
        placed = place(spec, topology)
        nodes = [topology.links[one.link].source if one.link >= 0 else topology.ranks[one.rank] for one in placed]
        if spec.fault.target is Target.PAIR:
            nodes += [topology.ranks[one.peer] for one in placed]
        effects = tuple(entry.effects[one.component] for one in placed if one.component in entry.effects)
        return FaultRecord(
            number=entry.number,
            text=spec.text,
            kind=spec.kind,
            components=tuple(one.component for one in placed),
            nodes=tuple(dict.fromkeys(topology.nodes[node].name for node in nodes)),
            is_live=entry.is_live,
            is_cleared=entry.is_cleared,
            effects=effects,
            schedule=tuple(spec.at(effect.begin_ps, effect.end_ps, effect.component) for effect in effects),
        )
