from hypothesis import given
from hypothesis import strategies as st

from janus_shards.cache.policy import Clock
from janus_shards.cache.usage import FILE_BYTES, NUM_SLOTS, Slot, Usage, encode_spent, spent_offset

U62 = st.integers(0, 2**62)
CLOCKS = st.builds(Clock, epoch=st.integers(-1, 2**40), began=U62, previous=U62)
SLOTS = st.builds(Slot, data_set=U62, clock=CLOCKS, leased=U62, spent=U62)


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    """Files with a few slots in use."""
    usage = Usage(boot=draw(st.binary(min_size=16, max_size=16)), total=draw(U62), tick=draw(U62))
    for number in draw(st.sets(st.integers(0, NUM_SLOTS - 1), max_size=4)):
        usage.slots[number] = draw(SLOTS)
    return usage


@given(usage=usages())
def test_the_file_comes_back(usage: Usage) -> None:
    """What was written is read back."""
    data = usage.encode()
    assert len(data) == FILE_BYTES
    assert Usage.decode(data) == usage


@given(usage=usages(), number=st.integers(0, NUM_SLOTS - 1), spent=U62)
def test_an_owner_writes_alone_what_it_spent(usage: Usage, number: int, spent: int) -> None:
    """The number of spent bytes is replaced in place, without the rest of the file and its checksums."""
    usage.slots[number] = Slot(data_set=1, leased=5, spent=1)
    data = bytearray(usage.encode())
    start = spent_offset(number)
    data[start : start + 8] = encode_spent(spent)
    usage.slots[number].spent = spent
    assert Usage.decode(bytes(data)) == usage


@given(usage=usages(), place=st.integers(0, FILE_BYTES - 1))
def test_damage_is_noticed(usage: Usage, place: int) -> None:
    """A changed byte makes the file unreadable, unless it is one that says nothing or what a slot has spent."""
    data = bytearray(usage.encode())
    data[place] ^= 1
    found = Usage.decode(bytes(data))
    if found is not None:
        for slot, before in zip(found.slots, usage.slots, strict=True):
            assert (slot.data_set, slot.clock, slot.leased) == (before.data_set, before.clock, before.leased)
        assert (found.boot, found.total, found.tick) == (usage.boot, usage.total, usage.tick)


@given(slot=SLOTS)
def test_settling_keeps_what_is_still_to_be_spent(slot: Slot) -> None:
    """Settling forgets what became entries and keeps the rest of the lease."""
    unspent = slot.unspent
    slot.settle()
    assert (slot.leased, slot.spent, slot.unspent) == (unspent, 0, unspent)
    assert unspent >= 0
