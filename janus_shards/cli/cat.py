"""``janus-shards cat``: one field of one sample, byte for byte."""

import base64
import sys
from collections.abc import Mapping

import click

from janus_shards.cli.options import shared_options
from janus_shards.cli.terminal import print_json
from janus_shards.decode.lazy import Sample
from janus_shards.errors import ConfigError
from janus_shards.reader import open_dataset


@click.command("cat")
@click.argument("root")
@click.argument("key")
@click.argument("field")
@shared_options
def command(*, root: str, key: str, field: str, storage: Mapping[str, object], as_json: bool) -> None:
    """Write one field of one sample to stdout.

    The bytes are those that are stored. With --json they are "text", where they are UTF-8, or else "base64".
    """
    dataset = open_dataset(root, storage_options=storage)
    sample = dataset.by_key(key)
    if field not in sample:
        raise ConfigError(f"{dataset.url}: sample {key!r} has no field {field!r}; it has {', '.join(sample)}")
    data = sample.raw(field)
    if as_json:
        print_json(_document(sample, field, data))
        return
    if sys.stdout.isatty() and not _is_text(data):
        raise ConfigError(f"field {field!r} is no text and would upset the terminal; send it to a file with >")
    sys.stdout.buffer.write(data)
    if sys.stdout.isatty() and not data.endswith(b"\n"):
        sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()


def _document(sample: Sample, field: str, data: bytes) -> dict[str, object]:
    try:
        content = {"text": data.decode()}
    except UnicodeDecodeError:
        content = {"base64": base64.b64encode(data).decode()}
    named = {"key": sample.key, "sample_id": sample.sample_id, "shard": sample.shard, "field": field}
    return {**named, "bytes": len(data), **content}


def _is_text(data: bytes) -> bool:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    return all(char.isprintable() or char in "\t\r\n" for char in text)
