from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from janus_shards.reader import open_dataset
from tests.conftest import S3Server


def test_info_is_readable(run: Callable[..., Result], packed: Path) -> None:
    """All facts are there, in lines of at most 80 columns."""
    lines = run("info", packed).stdout.splitlines()
    assert lines[0] == str(packed)
    assert [line.split()[0] for line in lines[1:]] == [
        "samples",
        "shards",
        "bytes",
        "fields",
        "columns",
        "generation",
        "fingerprint",
    ]
    assert max(map(len, lines[1:])) <= 80


def test_info_json(run_json: Callable[..., Any], packed: Path) -> None:
    """The document says what the library says."""
    document, dataset = run_json("info", packed), open_dataset(str(packed))
    assert document["samples"] == len(dataset) == 13
    assert document["fingerprint"] == dataset.fingerprint
    assert document["columns"] == {"width": "int64", "height": "int64"}
    assert document["bytes"] == sum(tar.stat().st_size for tar in packed.glob("*.tar"))
    assert document["shard_samples"] == {"min": 1, "max": 4}


@pytest.mark.s3
def test_signatures_are_not_shown(run: Callable[..., Result], s3_server: S3Server) -> None:
    """Neither the query string nor the password of a URL is in a message."""
    host = s3_server.endpoint.removeprefix("http://")
    result = run("info", f"http://user:word@{host}/none/data?X-Amz-Signature=secret", code=3)
    assert f"{host}/none/data" in result.stderr
    assert "secret" not in result.output
    assert "word" not in result.output
