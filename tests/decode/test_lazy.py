import pickle

import pytest

from janus_shards.decode.lazy import Sample, locate
from janus_shards.errors import DecodeError, MissingFieldError, TransientError

STORED = {"txt": b"a cat", "json": b"{broken", "cls": b"7"}


class Reads:
    """Gives stored bytes and remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, field: str) -> memoryview:
        """The bytes of a field."""
        self.asked.append(field)
        return memoryview(STORED[field])


def sample(raw: Reads | None = None) -> Sample:
    """A sample of three fields, one of them damaged."""
    return Sample("train/0001", 17, raw or Reads(), list(STORED), shard="train-000003.tar")


def test_fields_are_read_and_decoded_once_when_asked() -> None:
    """Nothing is read before a field is, and then only that field, once."""
    reads = Reads()
    lazy = sample(reads)
    assert "cls" in lazy
    assert list(lazy) == ["txt", "json", "cls"]
    assert len(lazy) == 3
    assert reads.asked == []
    assert lazy["txt"] is lazy["txt"]
    assert lazy.raw("txt") == b"a cat"
    assert reads.asked == ["txt"]


def test_raw_needs_no_codec() -> None:
    """The bytes of a damaged field stay available."""
    assert sample().raw("json") == b"{broken"


def test_damage_is_told_with_shard_key_and_field() -> None:
    """A field that cannot be decoded says where it lies; the others stay readable."""
    lazy = sample()
    with pytest.raises(DecodeError, match=r"train-000003\.tar: sample 'train/0001', field 'json'") as caught:
        lazy["json"]
    error = caught.value
    assert (error.kind, error.shard, error.key, error.field) == (
        "json_decode",
        "train-000003.tar",
        "train/0001",
        "json",
    )
    assert lazy["txt"] == "a cat"


def test_missing_field_names_those_there_are() -> None:
    """Asking for a field the sample lacks lists what it has, and behaves as in any mapping."""
    with pytest.raises(MissingFieldError, match=r"'train/0001', field 'jpg': .* txt, json, cls") as caught:
        sample()["jpg"]
    assert isinstance(caught.value, KeyError)
    assert sample().get("jpg", "none") == "none"
    with pytest.raises(MissingFieldError):
        sample().raw("jpg")


def test_storage_faults_pass_unchanged() -> None:
    """A fault of the store is not turned into a fault of the sample."""

    def unreachable(field: str) -> bytes:
        raise TransientError("gone")

    with pytest.raises(TransientError, match="gone"):
        Sample("a", 0, unreachable, ["txt"])["txt"]


def test_sample_travels_to_other_processes_with_its_bytes() -> None:
    """A pickled sample is complete and no longer needs its reader."""
    arrived = pickle.loads(pickle.dumps(sample()))
    assert (arrived.key, arrived.sample_id, arrived.shard) == ("train/0001", 17, "train-000003.tar")
    assert {field: arrived.raw(field) for field in arrived} == STORED
    assert arrived["cls"] == 7


def test_a_field_that_cannot_be_read_travels_as_its_error() -> None:
    """A worker can send a sample whatever its bytes are like; the error is raised where the field is used."""

    def fail(field: str) -> bytes:
        raise TransientError("gave up after 6 attempts", shard="a.tar")

    arrived = pickle.loads(pickle.dumps(Sample("k", 0, fail, ["txt"])))
    assert list(arrived) == ["txt"]
    with pytest.raises(TransientError, match="gave up after 6 attempts") as caught:
        arrived["txt"]
    assert caught.value.shard == "a.tar"


def test_decoders_of_the_caller_are_used() -> None:
    """A sample decodes with the decoders it was opened with."""
    assert Sample("a", 0, lambda field: b"ab", ["txt"], {"txt": len})["txt"] == 2


def test_located_errors_keep_class_and_kind() -> None:
    """Adding the place changes neither the class nor the kind of an error, and works without a shard."""
    error = locate(DecodeError("cut", kind="image_decode"), shard=None, key="k", field="jpg")
    assert type(error) is DecodeError
    assert (error.kind, str(error)) == ("image_decode", "sample 'k', field 'jpg': cut")
