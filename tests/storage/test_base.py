import pickle

import pytest

from janus_shards.errors import ConfigError
from janus_shards.storage.base import Credentials, StorageOptions


def test_flat_mapping_becomes_options() -> None:
    """A user's storage_options are sorted into their groups; names of boto3 and s3fs are understood."""
    options = StorageOptions.from_mapping(
        {"endpoint_url": "http://h:9", "key": "a", "secret": "b", "max_attempts": 3, "stall_timeout_s": 2}
    )
    assert options.credentials == Credentials("a", "b")
    assert (options.transfer.max_attempts, options.transfer.stall_timeout_s) == (3, 2)
    assert StorageOptions.from_mapping(None) == StorageOptions()


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"colour": 1}, "'colour' is not known; known are access_key_id, anonymous"),
        ({"transfer": {}}, "not known"),
        ({"max_attempts": 0}, "at least 1"),
        ({"max_attempts": "3"}, "max_attempts: expected an integer, found str"),
        ({"anonymous": 1}, "true or false"),
        ({"region": 5}, "text"),
        ({"stall_timeout_s": -1.0}, "above 0"),
        ({"access_key_id": "a"}, "together"),
        ({"anonymous": True, "profile": "p"}, "anonymous"),
        ({"endpoint_url": "localhost:9000"}, "http://host:port"),
    ],
)
def test_wrong_options_are_refused(values: dict[str, object], match: str) -> None:
    """A mistake in the options is named before anything is opened."""
    with pytest.raises(ConfigError, match=match):
        StorageOptions.from_mapping(values)


def test_secrets_stay_behind() -> None:
    """Keys and file-system settings are in neither repr nor pickle, and a copy knows that keys were withheld."""
    options = StorageOptions.from_mapping({"key": "a-key", "secret": "a-secret", "fsspec": {"token": "a-token"}})
    data = pickle.dumps(options)
    copy = pickle.loads(data)
    for secret in ("a-key", "a-secret", "a-token"):
        assert secret not in repr(options)
        assert secret.encode() not in data
    assert copy.credentials is not None
    assert copy.credentials.withheld
    assert copy.transfer == options.transfer
