import copy
import pickle
import traceback

import pytest

from janus_shards import errors
from janus_shards.errors import JanusShardsError

FAMILY = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, JanusShardsError)]
BUILT_IN = {
    "ConfigError": ValueError,
    "FormatError": ValueError,
    "StorageError": OSError,
    "ObjectNotFoundError": FileNotFoundError,
    "AccessDeniedError": PermissionError,
    "MissingFieldError": KeyError,
}


@pytest.mark.parametrize("kind", FAMILY)
def test_survives_the_way_out_of_a_worker(kind: type[JanusShardsError]) -> None:
    """Every exception pickles and copies with its message, kind, shard, key and field."""
    raised = kind("cut at 512", kind="truncated_shard", shard="s3://b/a.tar", key="k", field="jpg")
    for arrived in (pickle.loads(pickle.dumps(raised)), copy.copy(raised)):
        assert type(arrived) is kind
        assert str(arrived) == "cut at 512"
        assert vars(arrived) == vars(raised)


@pytest.mark.parametrize("kind", FAMILY)
def test_can_be_built_from_a_message_alone(kind: type[JanusShardsError]) -> None:
    """A message is enough, is shown as it is, and leaves the class's own kind."""
    raised = kind("shard 'a.tar' is damaged")
    assert str(raised) == "shard 'a.tar' is damaged"
    assert raised.kind == kind.default_kind != ""
    assert (raised.shard, raised.key, raised.field) == (None, None, None)


@pytest.mark.parametrize("kind", FAMILY)
def test_survives_the_text_of_a_traceback(kind: type[JanusShardsError]) -> None:
    """Built from the text of its traceback, as torch does with what a worker raised, an exception has its context."""
    raised = kind("cut at 512\nof 1024", kind="truncated_shard", shard="s3://b/ä.tar", key="k\n1", field="jpg")
    raised.add_note("while copying")
    raised.__cause__ = kind("reset", kind="transfer_failed", key="another")
    text = "".join(traceback.format_exception(raised))
    arrived = kind(f"Caught {kind.__name__} in DataLoader worker process 0.\nOriginal {text}")
    assert (arrived.kind, arrived.shard, arrived.key, arrived.field) == (
        "truncated_shard",
        "s3://b/ä.tar",
        "k\n1",
        "jpg",
    )
    assert "cut at 512" in str(arrived)
    assert "while copying" in str(arrived)


@pytest.mark.parametrize("rest", ["", "{", "[]", "{}", "null", '{"kind": "x"}'])
def test_text_that_only_looks_like_a_context(rest: str) -> None:
    """Is a message like any other."""
    assert JanusShardsError(f"janus-shards context: {rest}").kind == "error"


@pytest.mark.parametrize(("name", "base"), BUILT_IN.items())
def test_is_caught_as_the_built_in_exception(name: str, base: type[Exception]) -> None:
    """Callers that know nothing of this library catch what they would expect from Python."""
    with pytest.raises(base):
        raise getattr(errors, name)("message")


def test_subclasses_belong_to_their_family() -> None:
    """One ``except`` for damaged bytes, one for the store, one for samples."""
    families = {
        errors.FormatError: (errors.TarFormatError, errors.IndexFormatError, errors.ManifestError, errors.VersionError),
        errors.StorageError: (errors.TransientError, errors.IntegrityError, errors.AccessDeniedError),
        errors.SampleError: (errors.DecodeError, errors.MissingFieldError),
    }
    assert all(issubclass(kind, family) for family, kinds in families.items() for kind in kinds)
    assert not issubclass(errors.SampleBudgetError, errors.SampleError)


def test_names_the_sample_that_cannot_be_read() -> None:
    """A failure of the store or of a shard becomes that of a sample, with class, kind and shard."""
    found = errors.IntegrityError("it ends", kind="truncated_shard", shard="a.tar").of_sample("k1", "jpg")
    assert type(found) is errors.IntegrityError
    assert (found.kind, found.shard, found.key, found.field) == ("truncated_shard", "a.tar", "k1", "jpg")
    assert str(found) == "sample 'k1', field 'jpg': it ends"
