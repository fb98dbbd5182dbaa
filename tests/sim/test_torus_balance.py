"""Dimension order on a three-dimensional torus, over all of its traffic."""

from __future__ import annotations

from collections import Counter

from emu.topologies import torus


def test_all_to_all_loads_every_link_of_a_4x4x4_torus_alike() -> None:
    """Over all ordered pairs and all eight lanes each of the 384 links carries n k / 8 = 32 messages: the bound."""
    topology = torus.build(torus.Parameters(shape=(4, 4, 4)))
    spread = topology.router.spread
    load: Counter[int] = Counter()
    for source in topology.ranks:
        for target in topology.ranks:
            for lane in range(spread):
                load.update(topology.router.route(topology, source, target, lane))
    assert spread == 8
    assert len(load) == 384
    assert set(load.values()) == {64 * 4 // 8 * spread}
