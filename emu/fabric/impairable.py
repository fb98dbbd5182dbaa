"""Impairable: what a link's sender knows of the impairments on it, which may change while it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from emu.fabric.capacity import Capacity, Seeded, seeded, with_another, with_one_more
from emu.impairments.base import BaseImpairment
from emu.topologies.graph import Link


class Impairable(ABC):
    """Ground of the machines that send on a link: its capacity, and what delays and loses."""

    __slots__ = ("_capacity", "_delays", "_is_plain", "_losses", "_own", "_seed_of_impairments")

    def __init__(self, *, link: Link, index: int, seed: int, impairments: Iterable[tuple[BaseImpairment, int | None]]) -> None:
        """``impairments``: (impairment, plane or None), as :func:`emu.impairments.spec.resolve` gives them."""
        self._seed_of_impairments = seed
        self._capacity = Capacity(link=link, index=index, impairments=())
        self._install(seeded(impairments, seed))

    def _install(self, own: Seeded) -> None:
        self._own = own
        self._capacity.install(own)
        self._delays = tuple((impairment, its) for impairment, _, its in own if impairment.changes_delay)
        self._losses = tuple((impairment, its) for impairment, _, its in own if impairment.loses)
        self._is_plain = not any(one.changes_capacity or one.changes_delay or one.loses for one, _, _ in own)

    @property
    @abstractmethod
    def decided_ps(self) -> int:
        """When the last byte of what is decided so far has left: nothing that comes changes it."""

    def impair(self, impairment: BaseImpairment, plane: int | None) -> int:
        """One more impairment, which does nothing before :attr:`decided_ps`.  Returns its place."""
        self._install(with_one_more(self._own, impairment, plane, self._seed_of_impairments))
        return len(self._own) - 1

    def replace(self, place: int, impairment: BaseImpairment) -> None:
        """Another impairment in that place, which does the same before :attr:`decided_ps`."""
        self._install(with_another(self._own, place, impairment))
