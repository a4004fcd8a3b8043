from hypothesis import given
from hypothesis import strategies as st

from janus_shards.cache.entry import (
    DECODED,
    RAW,
    STAMP_BYTES,
    STAMP_OFFSET,
    Header,
    Stamp,
    decode_header,
    header_bytes,
    read_table,
    stamp_of,
)

IDENTITIES = st.binary(max_size=6000)
U64 = st.integers(0, 2**64 - 1)
RAW_HEADERS = st.builds(
    Header, kind=st.just(RAW), identity=IDENTITIES, payload_bytes=st.integers(0, 2**40), payload_xxh3=U64, nonce=U64
)


@st.composite
def decoded_headers(draw: st.DrawFn) -> Header:
    """Headers of decoded entries."""
    rows, size = draw(st.integers(1, 2000)), draw(st.integers(1, 2**22))
    return Header(
        kind=DECODED,
        identity=draw(IDENTITIES),
        payload_bytes=rows * size,
        num_rows=rows,
        record_bytes=size,
        nonce=draw(U64),
    )


HEADERS = RAW_HEADERS | decoded_headers()
STAMPS = st.builds(Stamp, data_set=U64, epoch=st.integers(-1, 2**62), tick=U64)


@given(header=HEADERS, stamp=STAMPS)
def test_headers_come_back(header: Header, stamp: Stamp) -> None:
    """Header, stamp and an empty table are read back as written; the payload starts at a page."""
    data = header.encode(stamp)
    assert decode_header(data) == header
    assert stamp_of(data) == stamp
    assert read_table(data, header) == [0] * header.num_rows
    assert len(data) == header.payload_start == header_bytes(data)
    assert len(data) % 4096 == 0


@given(header=HEADERS, stamp=STAMPS, place=st.integers(0, 127), bit=st.integers(0, 7))
def test_a_changed_bit_never_changes_what_an_entry_is(header: Header, stamp: Stamp, place: int, bit: int) -> None:
    """With any bit of the fixed part changed, the header is refused or still the same; a damaged stamp is nobody's."""
    data = bytearray(header.encode(stamp))
    data[place] ^= 1 << bit
    assert decode_header(bytes(data)) in (None, header)
    in_stamp = STAMP_OFFSET <= place < STAMP_OFFSET + STAMP_BYTES
    assert stamp_of(bytes(data)) == (Stamp() if in_stamp else stamp)


@given(header=HEADERS, data=st.data())
def test_another_identity_is_noticed(header: Header, data: st.DataObject) -> None:
    """A changed byte of the identity, or a file cut inside of it, is no header."""
    whole = header.encode(Stamp())
    if header.identity:
        place = 128 + data.draw(st.integers(0, len(header.identity) - 1))
        assert decode_header(whole[:place]) is None
        assert decode_header(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]) is None


@given(data=st.binary(max_size=300))
def test_foreign_bytes_are_no_header(data: bytes) -> None:
    """Whatever else stands in a file is no entry, also behind our magic."""
    assert decode_header(data) is None
    assert decode_header(b"JSHCACHE\1\0\1\0" + data) is None
    assert stamp_of(data) == Stamp()
