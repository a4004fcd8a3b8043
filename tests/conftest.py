"""Fixtures of all tests: no ambient cloud settings, an S3 server, and one that breaks transfers."""

import itertools
import logging
import os
import re
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeAlias

import pytest
from hypothesis import settings

from janus_shards.storage.base import Credentials, StorageOptions, TransferOptions
from tools.fault_server import FaultServer, Rule

# Examples take as long as a busy machine makes them; a slow one is no failure. CI tries the same examples at every run.
settings.register_profile("janus-shards", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("janus-shards")


@dataclass(frozen=True)
class S3Server:
    """moto's S3 server, running in a thread of the test process.

    Attributes:
        endpoint: ``http://127.0.0.1:port``.
    """

    endpoint: str
    access_key_id: str = "test-key"
    secret_access_key: str = "test-secret"
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def create_bucket(self, name: str | None = None) -> str:
        """Make a bucket, with a name of its own where none is given; returns ``s3://name``."""
        name = name or f"bucket-{next(self.numbers)}"
        self._ask("PUT", f"/{name}")
        return f"s3://{name}"

    def fill(self, bucket: str, keys: Iterable[str]) -> None:
        """Put many empty objects at once, past the server's door."""
        from moto.s3.models import s3_backends

        for key in keys:
            s3_backends["123456789012"]["aws"].put_object(bucket.removeprefix("s3://"), key, b"")

    def unfinished_uploads(self, bucket: str) -> list[str]:
        """Keys with a multipart upload that was neither completed nor aborted."""
        return re.findall("<Key>(.*?)</Key>", self._ask("GET", f"/{bucket.removeprefix('s3://')}?uploads"))

    def _ask(self, method: str, path: str) -> str:
        request = urllib.request.Request(self.endpoint + path, method=method)
        with urllib.request.urlopen(request) as answer:
            text: str = answer.read().decode()
            return text

    @property
    def options(self) -> StorageOptions:
        """Options that reach this server."""
        return StorageOptions(
            endpoint_url=self.endpoint,
            region="us-east-1",
            credentials=Credentials(self.access_key_id, self.secret_access_key),
            transfer=TransferOptions(max_attempts=2, first_pause_s=0.01),
        )

    @property
    def env(self) -> dict[str, str]:
        """The same as AWS variables, for other processes."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_REGION": "us-east-1",
        }


@pytest.fixture(scope="session", autouse=True)
def no_ambient_cloud() -> Iterator[None]:
    """AWS settings of the machine reach no test, and no test looks for the keys of an instance."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        yield


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """An S3 server on a free port; make a bucket of your own for each test."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield S3Server(endpoint=f"http://{host}:{port}")
    server.stop()


@pytest.fixture
def s3_env(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The S3 server, reachable through the usual AWS variables as well."""
    for name, value in s3_server.env.items():
        monkeypatch.setenv(name, value)
    return s3_server


#: ``fault_server(source, *rules, **settings)``: see ``FaultServer``.
OpenFaultServer: TypeAlias = Callable[..., FaultServer]


@pytest.fixture
def fault_server() -> Iterator[OpenFaultServer]:
    """Starts servers of a bucket that break transfers by rules; they end with the test."""
    with ExitStack() as stack:

        def start(source: object, *rules: Rule, **settings: object) -> FaultServer:
            return stack.enter_context(FaultServer(source, rules, **settings))  # type: ignore[arg-type]

        yield start
