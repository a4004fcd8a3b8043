import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from janus_shards.cache.entry import Stamp
from janus_shards.cache.policy import (
    LEASE_BYTES,
    Clock,
    Consumer,
    Resident,
    Source,
    eviction_order,
    in_share,
    kind_shares,
    lease_bytes,
    shares,
)

SIZES = st.integers(0, 10**13)
STAMPS = st.builds(Stamp, data_set=st.integers(1, 3), epoch=st.integers(0, 5), tick=st.integers(0, 9))
CONSUMERS = st.lists(st.builds(Consumer, data_set=st.integers(1, 3), previous=st.integers(0, 9)))


@given(needed=st.integers(1, 10**12), room=SIZES, budget=st.integers(1, 10**13))
def test_leases_fit_the_room(needed: int, room: int, budget: int) -> None:
    """A lease is enough for the entry at hand and within what is left, or there is none."""
    leased = lease_bytes(needed, room_bytes=room, budget_bytes=budget)
    assert leased == 0 if needed > room else needed <= leased <= room
    assert leased <= max(needed, LEASE_BYTES)


def test_leases_of_a_small_budget_are_small() -> None:
    """Leases are 256 MiB of a large budget, and a small part of a small one, so that ranks share it evenly."""
    assert lease_bytes(1, room_bytes=2**40, budget_bytes=2**40) == LEASE_BYTES
    assert lease_bytes(1, room_bytes=64 << 20, budget_bytes=64 << 20) == 1 << 20
    assert lease_bytes(1, room_bytes=800, budget_bytes=64 << 20) == 100


@given(stamps=st.lists(STAMPS), consumers=CONSUMERS)
def test_only_what_nobody_wants_is_evicted(stamps: list[Stamp], consumers: list[Consumer]) -> None:
    """Evicted is what belongs to a data set without consumers, or what none of its consumers touched in an epoch."""
    residents = [Resident(str(number), 1, stamp, number) for number, stamp in enumerate(stamps)]
    for resident in eviction_order(residents, consumers):
        theirs = [consumer for consumer in consumers if consumer.data_set == resident.stamp.data_set]
        assert all(resident.stamp.tick < consumer.previous for consumer in theirs)


@given(stamps=st.lists(STAMPS), consumers=CONSUMERS)
def test_other_data_sets_go_first_and_the_oldest_before(stamps: list[Stamp], consumers: list[Consumer]) -> None:
    """Data sets that nobody uses go before those in use; within both, what was touched long ago goes first."""
    residents = [Resident(str(number), 1, stamp, number) for number, stamp in enumerate(stamps)]
    used = {consumer.data_set for consumer in consumers}
    order = [(found.stamp.data_set in used, found.stamp.tick) for found in eviction_order(residents, consumers)]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("clock", "epoch", "whole", "previous"),
    [
        pytest.param(Clock(), 0, True, 0, id="first"),
        pytest.param(Clock(3, 7, 5), 4, True, 7, id="next"),
        pytest.param(Clock(3, 7, 5), 4, False, 0, id="broken off"),
        pytest.param(Clock(3, 7, 5), 3, True, 5, id="gone on with"),
        pytest.param(Clock(3, 7, 5), 0, True, 0, id="started anew"),
        pytest.param(Clock(3, 7, 5), 9, True, 0, id="skipped"),
    ],
)
def test_only_a_whole_epoch_tells_what_is_idle(clock: Clock, epoch: int, whole: bool, previous: int) -> None:
    """The epoch before counts as an observation only when it was the one before and was served whole."""
    assert clock.next(epoch, tick=10, whole=whole) == Clock(epoch, 10, previous)


@given(raw=SIZES, decoded=SIZES, budget=st.integers(1, 10**13))
def test_kinds_share_the_budget(raw: int, decoded: int, budget: int) -> None:
    """All decoded rows when they fit; otherwise stored bytes first, and decoded rows with no more than they leave."""
    found = kind_shares(raw_bytes=raw, decoded_bytes=decoded, budget_bytes=budget)
    if decoded <= budget:
        assert found.decoded == 1
    else:
        assert found.raw == 1
        assert found.decoded * decoded <= max(0, budget - raw) * 1.0001


@given(
    sources=st.lists(
        st.builds(Source, num_bytes=st.integers(0, 1000), rate=st.sampled_from([0.25, 1.0, 3.0])),
        min_size=2,
        max_size=5,
    ),
    budget=st.integers(1, 3000),
)
def test_sources_met_more_often_are_kept_first(sources: list[Source], budget: int) -> None:
    """The shares fill the budget and no more, and no source gets a share while one met more often is not whole."""
    kept = shares(sources, budget_bytes=budget)
    taken = sum(share * source.num_bytes for share, source in zip(kept, sources, strict=True))
    assert taken == pytest.approx(min(budget, sum(source.num_bytes for source in sources)), abs=1e-6)
    for one, share in zip(sources, kept, strict=True):
        for other, other_share in zip(sources, kept, strict=True):
            if other.rate > one.rate and share > 0 and one.num_bytes:
                assert other_share == 1


def test_a_single_source_is_kept_as_it_comes() -> None:
    """A data set alone is admitted until the budget is full: choosing beforehand would leave a gap."""
    assert shares([Source(1000)], budget_bytes=10) == [1.0]


def test_a_share_is_the_same_blocks_everywhere() -> None:
    """Which blocks belong to a share follows from their digests alone, and a share of x holds about x of them."""
    digests = [random.Random(number).randbytes(16) for number in range(4000)]
    kept = [digest for digest in digests if in_share(digest, 0.3)]
    assert len(kept) / len(digests) == pytest.approx(0.3, abs=0.03)
    assert all(in_share(digest, 0.6) for digest in kept)
    assert all(in_share(digest, 1.0) for digest in digests)
    assert not any(in_share(digest, 0.0) for digest in digests)
