"""Protocols: what goes with what, how blocks are cut, and what NCCL's tuner takes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emu.collectives.reduce import DTYPES, OPS
from emu.errors import ConfigError
from emu.protocols import nccl, predict
from emu.protocols.costs import SLICE_BYTES, EndpointCosts, Generation, charges, slice_bytes
from emu.protocols.flags import FLAG_EVERY_BYTES, data_bytes, flagged_bytes
from emu.protocols.legal import OPS as LEGAL_OPS
from emu.protocols.legal import Protocol, Reduction, legal_protocols, reducing, usual_protocols
from emu.protocols.question import Question, Way
from emu.protocols.selection import check_protocol, left_by, require_legal
from emu.units import PS_PER_MICROSECOND

GB_PER_S = 8 * 10**9
HOPPER = EndpointCosts(rate_bps=360 * GB_PER_S, tuner_rate_bps=360 * GB_PER_S)
AMPERE = replace(HOPPER, generation=Generation.AMPERE, tuner_rate_bps=240 * GB_PER_S)
BLACKWELL = replace(HOPPER, generation=Generation.BLACKWELL, tuner_rate_bps=720 * GB_PER_S, channels=32)


def question(costs: EndpointCosts, collective: str, n_ranks: int, size_bytes: int, algorithms: tuple[str, ...]) -> Question:
    ways = tuple(
        Way(name, tuple(legal_protocols(collective, name)), 2 * (n_ranks - 1), Fraction(2 * (n_ranks - 1), n_ranks))
        for name in algorithms
    )
    return Question(costs=costs, collective=collective, n_ranks=n_ranks, n_hosts=1, size_bytes=size_bytes, ways=ways)


@pytest.mark.parametrize(
    ("collective", "algorithm", "legal"),
    [
        ("all_reduce", "ring", "ll ll128 simple"),
        ("all_reduce", "tree", "ll ll128 simple"),
        ("all_reduce", "nvls", "simple"),
        ("all_reduce", "collnet_direct", "simple"),
        ("all_gather", "pat", "simple"),
        ("alltoall", "pairwise", "ll simple"),
        ("all_gather", "direct", "ll simple"),
        ("send", "p2p", "ll simple"),
    ],
)
def test_legal_combinations(collective: str, algorithm: str, legal: str) -> None:
    """In-switch algorithms and PAT take Simple only, grouped sends no LL128; all else any, and the rest is refused by name."""
    assert legal_protocols(collective, algorithm) == tuple(legal.split())
    for protocol in Protocol:
        if protocol in legal.split():
            require_legal(protocol, collective, algorithm)
        else:
            with pytest.raises(ConfigError, match=f"protocol {protocol} does not go with {algorithm} {collective}; use auto or"):
                require_legal(protocol, collective, algorithm)


@pytest.mark.parametrize(
    ("algorithm", "op", "dtype", "said"),
    [
        ("pat", "avg", "float32", "avg does not go with pat reduce_scatter, as in NCCL; use sum, prod, min, max, or alg"),
        ("pat", "avg", None, "reduction avg does not go with pat"),
        ("pat", "prod", "int8", ""),
        ("nvls", "avg", "float32", "reduction avg of float32 does not go with nvls reduce_scatter, as in NCCL; use sum, or"),
        ("nvls", "max", "float64", "reduction max of float64"),
        ("nvls", "max", "bfloat16", ""),
        ("nvls", "prod", None, "reduction prod does not go with nvls .*; use sum, min, max"),
        ("nvls", "sum", "float64", ""),
        ("nvlstree", "sum", "uint8", "dtype uint8 does not go with nvlstree .*; use int32, uint32, int64, uint64, float16"),
        ("collnet_direct", "avg", "int8", ""),
        ("ring", "avg", "int8", ""),
        ("tree", "prod", "float16", ""),
    ],
)  # fmt: skip
def test_legal_reductions(algorithm: str, op: str, dtype: str | None, said: str) -> None:
    """PAT has no avg, NVLS what NVLink's switches can do; of several algorithms these are passed over, alone they are refused."""
    names, its = (algorithm, "ring"), Reduction(op, dtype)
    assert reducing(names, None, "reduce_scatter") == names
    assert reducing(names, its, "reduce_scatter") == (("ring",) if said else names)
    if said:
        with pytest.raises(ConfigError, match=said):
            reducing((algorithm,), its, "reduce_scatter")


def test_two_trees_are_charged_by_channel_as_nccls_are() -> None:
    """A rank is inner in one tree's channels and a leaf in the other's, so that a lane has a channel's rate."""
    costs = replace(HOPPER, channels=24)
    mine, nccls = (charges(costs, *what, "simple") for what in (("broadcast", "two_tree"), ("all_reduce", "tree")))
    assert mine == nccls and (mine.lanes, mine.rate_bps) == (24, 15 * GB_PER_S)
    assert charges(costs, "broadcast", "ring", "simple").lanes == 1


def test_every_reduction_goes_with_a_ring() -> None:
    """What is said to be refused is no more than the table's: there is nothing that emu reduces and a ring does not."""
    assert set(LEGAL_OPS) == set(OPS)
    assert all(reducing(("ring",), Reduction(op, dtype), "all_reduce") for op in OPS for dtype in DTYPES)


def test_protocol_names() -> None:
    """NCCL's spelling is taken, others are refused with what there is."""
    assert check_protocol("LL128") == "ll128"
    with pytest.raises(ConfigError, match="'fast': use one of auto, simple, ll, ll128"):
        check_protocol("fast")


@pytest.mark.parametrize(
    ("text", "collective", "left"),
    [
        ("auto", "all_reduce", "ll ll128 simple"),
        ("LL", "all_reduce", "ll"),
        ("Simple, LL128", "all_reduce", "ll128 simple"),
        ("^simple", "all_reduce", "ll ll128"),
        ("^LL,LL128", "all_reduce", "simple"),
        ("^ll,ll128,simple", "all_reduce", ""),
        ("allreduce:LL;broadcast:^LL", "all_reduce", "ll"),
        ("allreduce:LL;broadcast:^LL", "broadcast", "ll128 simple"),
        ("AllReduce:LL;broadcast:^LL", "all_gather", "ll ll128 simple"),
        ("Simple;all_reduce:LL", "reduce_scatter", "simple"),
    ],
)
def test_nccls_words_select_protocols(text: str, collective: str, left: str) -> None:
    """Lists, exclusions and lists by collective leave what NCCL_PROTO's rules leave, in any case and spacing."""
    checked = check_protocol(text)
    assert check_protocol(checked) == checked
    assert left_by(checked, collective, tuple(Protocol)) == tuple(one for one in Protocol if one in left.split())


@pytest.mark.parametrize("text", ["", "LL,", "^", "LL;", "auto,ll", "^ll,^simple"])
def test_what_is_no_selection_of_protocols(text: str) -> None:
    """Empty names and mixed lists are refused with what may be written."""
    with pytest.raises(ConfigError, match="use one of auto, simple, ll, ll128, or a list such as ll,ll128 or \\^simple"):
        check_protocol(text)


def test_protocols_are_selected_for_collectives_that_have_them() -> None:
    """Another name before a colon is refused with those that may be used."""
    with pytest.raises(ConfigError, match="cannot be selected for 'alltoall', only for allreduce, allgather"):
        check_protocol("alltoall:LL")


@pytest.mark.parametrize(
    ("costs", "n_ranks", "last_ll_mib"),
    [(AMPERE, 2, 0.5), (HOPPER, 2, 1), (BLACKWELL, 2, 2), (HOPPER, 8, 2)],
)
def test_where_nccl_leaves_ll(costs: EndpointCosts, n_ranks: int, last_ll_mib: float) -> None:
    """A ring all_reduce leaves LL where measured times jump: after 512 KiB, 1 and 2 MiB on 2 A100, H100 and B200."""
    size_bytes = int(last_ll_mib * 2**20)
    chosen = [nccl.choose(question(costs, "all_reduce", n_ranks, size_bytes * factor, ("ring",))).protocol for factor in (1, 2)]
    assert chosen[0] == "ll"
    assert chosen[1] != "ll"


def test_nccl_latency_of_a_ring() -> None:
    """6.6 + 0.6 per hop and S / 80.6 GB/s: LL on 8 H100, with 360 GB/s of rings and 141 GB/s of LL at most."""
    its = question(HOPPER, "all_reduce", 8, 1000, ("ring",))
    assert nccl.time_us(its, its.ways[0], Protocol.LL) == pytest.approx(6.6 + 14 * 0.6 + 1000 / (141 * 8 / 14 * 1000))


def test_nccl_takes_nvls_for_long_messages_of_three_ranks_or_more() -> None:
    """NVLS on a Hopper from some MiB on, never on an Ampere, never over 2 ranks."""
    both = ("nvls", "ring")
    assert nccl.choose(question(HOPPER, "all_reduce", 8, 64 << 20, both)).algorithm == "nvls"
    assert nccl.choose(question(HOPPER, "all_reduce", 8, 64 << 10, both)).algorithm == "ring"
    assert nccl.choose(question(AMPERE, "all_reduce", 8, 64 << 20, both)).algorithm == "ring"
    assert nccl.choose(question(HOPPER, "all_reduce", 2, 64 << 20, both)).algorithm == "ring"


def test_nccl_groups_with_ll_up_to_16_kib_a_peer() -> None:
    """alltoall over 8 ranks: LL for 128 KiB, Simple beyond; sends go directly to their peers."""
    for size_bytes, protocol in ((128 << 10, "ll"), ((128 << 10) + 8, "simple")):
        choice = nccl.choose(question(HOPPER, "alltoall", 8, size_bytes, ("bruck", "direct")))
        assert (choice.algorithm, choice.protocol) == ("direct", protocol)


@pytest.mark.parametrize(
    ("collective", "algorithm", "size_kib", "usual"),
    [
        ("alltoall", "pxn", 128, "ll simple"),
        ("alltoall", "pxn", 129, "simple"),
        ("all_gather", "direct", 129, "simple"),
        ("broadcast", "direct", 17, "simple"),
        ("send", "p2p", 16, "ll simple"),
        ("send", "p2p", 17, "simple"),
        ("all_reduce", "ring", 1 << 20, "ll ll128 simple"),
    ],
)
def test_long_grouped_messages_never_use_ll(collective: str, algorithm: str, size_kib: int, usual: str) -> None:
    """Over 8 ranks LL is left out where a grouped message, a share of S or all of it, is longer than 16 KiB."""
    assert usual_protocols(collective, algorithm, size_kib << 10, 8) == tuple(usual.split())


@given(n_bytes=st.integers(2, 1 << 40), protocol=st.sampled_from(list(Protocol)))
@settings(max_examples=30, deadline=None)
def test_flags_fill_what_they_are_given(n_bytes: int, protocol: Protocol) -> None:
    """The most data that fits so many bytes with its flags does, and a byte more does not."""
    every_bytes = FLAG_EVERY_BYTES[protocol]
    most_bytes = data_bytes(n_bytes, every_bytes)
    assert flagged_bytes(most_bytes, every_bytes) <= n_bytes < flagged_bytes(most_bytes + 1, every_bytes)


def test_how_much_of_a_line_is_flags() -> None:
    """8 bytes of data take 16 with LL, 120 take 128 with LL128; Simple, and what has no protocol, has no flags."""
    its = FLAG_EVERY_BYTES
    assert (flagged_bytes(8, its["ll"]), flagged_bytes(120, its["ll128"]), flagged_bytes(121, its["ll128"])) == (16, 128, 130)
    assert flagged_bytes(8, its["simple"]) == flagged_bytes(8, its[""]) == 8


def test_nccl_answers_nothing_where_it_knows_nothing() -> None:
    """Of algorithms that are not NCCL's none is taken; beside one that is, they do not count."""
    assert nccl.choose(question(HOPPER, "all_reduce", 8, 1024, ("halving_doubling", "direct"))) is None
    assert nccl.choose(question(HOPPER, "alltoall", 8, 1024, ("bruck", "pairwise"))) is None
    beside = nccl.choose(question(HOPPER, "all_reduce", 8, 1024, ("halving_doubling", "tree")))
    assert beside == nccl.choose(question(HOPPER, "all_reduce", 8, 1024, ("tree",)))


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "broadcast"])
def test_one_rank_takes_no_steps(collective: str) -> None:
    """NCCL's time of a ring over one rank is its base, whatever the size."""
    its = question(HOPPER, collective, 1, 1 << 30, ("ring",))
    assert {one: nccl.time_us(its, its.ways[0], one) for one in Protocol} == nccl.BASE_US["ring"]


@pytest.mark.parametrize(
    ("collective", "algorithm", "n_ranks", "known"),
    [
        ("all_reduce", "nvls", 8, True),
        ("all_reduce", "nvls", 2, False),
        ("all_reduce", "nvlstree", 8, False),
        ("broadcast", "tree", 8, False),
        ("all_reduce", "collnet_direct", 8, False),
        ("all_reduce", "direct", 8, False),
        ("alltoall", "direct", 8, True),
        ("alltoall", "bruck", 8, False),
    ],
)
def test_what_nccls_tuner_knows(collective: str, algorithm: str, n_ranks: int, known: bool) -> None:
    """Not CollNet, NVLS of two, NVLSTree on one host, a tree but for all_reduce, or what NCCL has not; what it knows it takes."""
    its = question(HOPPER, collective, n_ranks, 1 << 20, (algorithm, "halving_doubling"))
    assert nccl.knows(its, its.ways[0], Protocol.SIMPLE) is known
    assert (nccl.choose(its) is not None) is known


@given(size_bytes=st.integers(0, 2**32), channels=st.integers(1, 64), protocol=st.sampled_from(list(Protocol)))
@settings(max_examples=30, deadline=None)
def test_slices_fit_the_channels_buffers(size_bytes: int, channels: int, protocol: Protocol) -> None:
    """No slice is longer than the channels' slots, beyond the smallest there is."""
    costs = replace(HOPPER, channels=channels)
    cut = slice_bytes(costs, "all_reduce", "ring", protocol, size_bytes)
    assert 4096 <= cut <= max(4096, SLICE_BYTES[protocol] * channels)


def test_rates_by_protocol() -> None:
    """LL128 has 15/16 of Simple's rate, LL half of it unless another is given, grouped and in-switch calls their own."""
    costs = replace(HOPPER, p2p_rate_bps=300 * GB_PER_S, nvls_rate_bps=260 * GB_PER_S, channel_rate_bps=7 * GB_PER_S)
    found = [
        charges(costs, collective, algorithm, protocol).rate_bps // GB_PER_S
        for collective, algorithm, protocol in (
            ("all_reduce", "ring", "simple"),
            ("all_reduce", "ring", "ll128"),
            ("all_reduce", "ring", "ll"),
            ("alltoall", "direct", "simple"),
            ("all_reduce", "nvls", "simple"),
        )
    ]
    assert found == [360, 337, 180, 300, 260]
    assert charges(costs, "alltoall", "direct", "ll").message_rate_bps == 7 * GB_PER_S


def test_a_trees_channels_each_have_their_own_rate() -> None:
    """One of 24 channels has a 24th of the rate; across hosts only those of the ports are open, for a ring together."""
    costs = replace(HOPPER, channels=24, host_channels=16)
    inside, across = (charges(costs, "all_reduce", "tree", "simple", n_hosts) for n_hosts in (1, 2))
    assert (inside.lanes, across.lanes) == (24, 16)
    assert inside.rate_bps == across.rate_bps == 15 * GB_PER_S
    assert charges(costs, "all_reduce", "ring", "simple", 2).rate_bps == 16 * 15 * GB_PER_S
    assert charges(replace(HOPPER, host_channels=None), "all_reduce", "ring", "simple", 2).rate_bps == HOPPER.rate_bps


def test_collnet_opens_half_as_many_channels_again() -> None:
    """Over hosts CollNet has three channels for every two of a ring's, at most all, and its chain a rate for each."""
    costs = replace(HOPPER, channels=24, host_channels=12)
    assert charges(costs, "all_reduce", "collnet_direct", "simple", 2).rate_bps == 18 * 15 * GB_PER_S
    assert charges(replace(costs, host_channels=20), "all_reduce", "collnet_direct", "simple", 2).rate_bps == 24 * 15 * GB_PER_S
    chain = charges(costs, "all_reduce", "collnet_chain", "simple", 2)
    assert (chain.lanes, chain.rate_bps) == (18, 15 * GB_PER_S)


@pytest.mark.parametrize(
    ("collective", "algorithm", "protocol", "n_hosts", "slot_kib"),
    [
        ("all_reduce", "ring", "simple", 2, 1024),
        ("all_reduce", "tree", "simple", 2, 512),
        ("all_reduce", "tree", "ll", 2, 32),
        ("all_reduce", "collnet_chain", "simple", 2, 512),
        ("alltoall", "direct", "simple", 2, 128),
        ("all_reduce", "nvls", "simple", 8, 128),
        ("all_reduce", "nvlstree", "simple", 3, 128),
        ("all_reduce", "nvlstree", "simple", 4, 64),
    ],
)
def test_a_proxys_slots_are_nccls(collective: str, algorithm: str, protocol: str, n_hosts: int, slot_kib: int) -> None:
    """A ring's slice, a tree's step, 128 KiB of grouped messages and NVLS, 64 KiB of NVLSTree over four hosts; a part is one."""
    its = charges(replace(HOPPER, network_slot_ps=7), collective, algorithm, protocol, n_hosts)
    assert [its.proxy_ps(slots * slot_kib * 1024 + more) for slots, more in ((0, 1), (1, 0), (3, 1))] == [7, 7, 28]


def test_a_trees_block_goes_in_steps_of_one_channel() -> None:
    """Blocks are dealt over the channels and cut into steps of 512 KiB, into fewer and longer ones where they are very long."""
    costs = replace(HOPPER, channels=24, host_channels=16)
    for block_bytes, n_blocks, cut_bytes in (
        (128 << 20, 16, 512 << 10),
        (100 << 10, 16, 100 << 10),
        (64 << 10, 4, 16 << 10),
        (1 << 10, 4, 4 << 10),
        (1 << 30, 16, 4 << 20),
    ):
        cut = slice_bytes(costs, "all_reduce", "tree", "simple", block_bytes, n_blocks=n_blocks, n_hosts=2)
        assert cut == cut_bytes
    over_128 = slice_bytes(costs, "all_reduce", "tree", "simple", 1 << 30, n_blocks=16, n_ranks=128, n_hosts=2)
    assert over_128 == -(-(1 << 30) // 122)


def test_grouped_calls_have_a_setup_of_their_own() -> None:
    """group_setup is paid by grouped sends and receives alone."""
    costs = replace(HOPPER, launch_ps=700, setup_ps=50, group_setup_ps=3)
    assert charges(costs, "alltoall", "direct", "ll").launch_ps == 703
    assert charges(costs, "alltoall", "direct", "simple").launch_ps == 753
    assert charges(costs, "all_gather", "ring", "simple").launch_ps == 750


def test_predict_goes_from_ll_to_simple_as_messages_grow() -> None:
    """The protocol with the smallest estimate is LL for short messages and Simple for long ones."""
    us = PS_PER_MICROSECOND
    costs = replace(HOPPER, setup_ps=5 * us, step_ps=4 * us, ll_step_ps=us // 2, ll128_step_ps=2 * us)
    short, long = (predict.choose(question(costs, "all_reduce", 8, size, ("ring",))).protocol for size in (1024, 1 << 30))
    assert (short, long) == ("ll", "simple")
