"""Every command on an object store."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.conftest import S3Server

pytestmark = pytest.mark.s3

Run = Callable[..., Result]
Json = Callable[..., Any]


def test_every_command_works_on_s3(run: Run, run_json: Json, s3_env: S3Server, photos: Path, tmp_path: Path) -> None:
    """Packed into a bucket, a data set is described, listed, read, checked and streamed from there."""
    root = f"{s3_env.create_bucket()}/train"
    packed = run_json("pack", photos, root, "--max-samples", "2", "--workers", "1")
    assert run_json("info", root)["fingerprint"] == packed["fingerprint"]
    assert [sample["key"] for sample in run_json("ls", root)] == ["chelsea", "coffee", "rocket"]
    assert run("cat", root, "coffee", "jpg").stdout_bytes == (photos / "coffee.jpg").read_bytes()
    run("get", root, "rocket", "-o", tmp_path)
    assert (tmp_path / "rocket.txt").read_bytes() == (photos / "rocket.txt").read_bytes()
    assert run_json("verify", root, "--full", "--workers", "1")["sound"]
    streamed = run_json("stream", root, "--batch-size", "1", "--fields", "jpg")
    assert streamed["samples"] == 3
    assert streamed["store"]["requests"] > 0
    assert streamed["store"]["bytes"] > 100_000


def test_local_and_remote_shards_are_the_same(run_json: Json, s3_env: S3Server, photos: Path, tmp_path: Path) -> None:
    """The same photographs give the same fingerprint on disk and in a bucket."""
    remote = run_json("pack", photos, s3_env.create_bucket(), "--workers", "1")
    assert run_json("pack", photos, tmp_path / "out")["fingerprint"] == remote["fingerprint"]


def test_index_a_bucket(run_json: Json, s3_env: S3Server, photos: Path, tmp_path: Path) -> None:
    """Tars in a bucket are indexed to a local root, which reads them where they are."""
    root = s3_env.create_bucket()
    run_json("pack", photos, f"{root}/a", "--workers", "1")
    document = run_json("index", f"{root}/a/*.tar", "--output", tmp_path / "ix", "--workers", "1")
    assert document["samples"] == 3
    assert run_json("cat", tmp_path / "ix", "coffee", "txt")["text"] == (photos / "coffee.txt").read_text()


def test_settings_by_option(run_json: Json, s3_env: S3Server, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Endpoint and region may be options instead of variables."""
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.delenv("AWS_REGION")
    options = ["--endpoint-url", s3_env.endpoint, "--region", "us-east-1"]
    root = s3_env.create_bucket()
    run_json("pack", photos, root, "--workers", "1", *options)
    assert run_json("info", root, *options)["samples"] == 3
