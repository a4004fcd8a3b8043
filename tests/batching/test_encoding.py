import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from janus_shards.batching.encoding import decode_plan, encode_plan
from janus_shards.batching.packing import Packing
from janus_shards.errors import FormatError
from tests.batching.test_plan import FIXTURES, LANES

IDENTITY = "f00d:0123:4"


def assert_equal(found, plan):
    """All arrays and numbers of both plans."""
    for name in ("rows", "offsets", "lanes", "shapes"):
        assert np.array_equal(getattr(found, name), getattr(plan, name)), name
        assert getattr(found, name).dtype == getattr(plan, name).dtype, name
    assert (found.num_tokens, found.num_slots) == (plan.num_tokens, plan.num_slots)


@FIXTURES
@given(lanes=LANES)
def test_a_plan_survives(rule, planned, lanes):
    """Encoded and decoded it is the same plan, whatever the rule."""
    _, _, plan = planned(rule, lanes)
    assert_equal(decode_plan(encode_plan(plan, identity=IDENTITY), identity=IDENTITY, name="plan"), plan)


def test_rows_far_apart_survive():
    """A tail batch of rows from lanes at both ends of a large data set is kept exactly."""
    rule, borders = Packing(column="tokens", max_tokens=64), np.array([0, 100_000, 200_000])
    sizes = np.full(200_000, 64, np.int32)
    sizes[[0, 100_001]] = 32
    plan = rule.plan(sizes, borders)
    assert plan.lanes[-1] == len(plan) - 1
    data = encode_plan(plan, identity=IDENTITY)
    assert_equal(decode_plan(data, identity=IDENTITY, name="plan"), plan)


def test_a_plan_takes_two_bytes_a_row(planned):
    """And sixteen and more a batch."""
    rule = Packing(column="tokens", max_tokens=8192)
    _, _, plan = planned(rule, [[50] * 20_000, [60] * 20_000])
    assert len(encode_plan(plan, identity=IDENTITY)) < 2.2 * 40_000


def test_the_plan_of_something_else_is_refused(planned):
    """A file under the right name with another epoch's plan is not used."""
    _, _, plan = planned(Packing(column="tokens", max_tokens=64), [[3, 4]])
    with pytest.raises(FormatError, match=r"expected the plan of f00d:0123:5, found that of b'f00d:0123:4'") as caught:
        decode_plan(encode_plan(plan, identity=IDENTITY), identity="f00d:0123:5", name="plan")
    assert caught.value.kind == "other_plan"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_bytes_are_a_format_error_and_nothing_else(planned, data):
    """Any byte changed, cut or added is found before a number is believed."""
    _, _, plan = planned(Packing(column="tokens", max_tokens=64), [[3, 4, 60], [9] * 9])
    whole = encode_plan(plan, identity=IDENTITY)
    at = data.draw(st.integers(0, len(whole) - 1))
    broken = [
        whole[:at],
        whole + b"\0",
        whole[:at] + bytes([whole[at] ^ 1 + data.draw(st.integers(0, 254))]) + whole[at + 1 :],
    ]
    for damaged in broken:
        with pytest.raises(FormatError):
            decode_plan(damaged, identity=IDENTITY, name="plan")


@pytest.mark.parametrize("word", range(9))
@pytest.mark.parametrize("value", [-1, 0, 3, 2**62])
def test_counts_are_checked_even_under_a_right_checksum(planned, word, value):
    """A header that claims other counts is refused before anything of that size is allocated."""
    import xxhash

    _, _, plan = planned(Packing(column="tokens", max_tokens=64), [[3, 4, 60], [9] * 9])
    body = bytearray(encode_plan(plan, identity=IDENTITY)[:-8])
    before = bytes(body)
    body[8 + 8 * word : 16 + 8 * word] = value.to_bytes(8, "little", signed=True)
    if bytes(body) == before or word in (5, 6, 8):
        return
    with pytest.raises(FormatError):
        decode_plan(bytes(body) + xxhash.xxh3_64_digest(bytes(body)), identity=IDENTITY, name="plan")
