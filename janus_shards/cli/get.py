"""``janus-shards get``: the fields of one sample as files."""

import os
from collections.abc import Mapping, Sequence

import click

from janus_shards.cli.options import names, shared_options
from janus_shards.cli.terminal import print_json, printable, size_text
from janus_shards.errors import ConfigError
from janus_shards.operations.extract import extract
from janus_shards.reader import open_dataset


@click.command("get")
@click.argument("root")
@click.argument("key")
@click.option("-o", "--output", metavar="DIR", required=True, help="Folder to write to; made when missing.")
@click.option("--fields", metavar="NAMES", callback=names, help="Fields to save, such as jpg,txt; all when not given.")
@click.option("--overwrite", is_flag=True, help="Replace files that are there.")
@shared_options
def command(
    *,
    root: str,
    key: str,
    output: str,
    fields: Sequence[str] | None,
    overwrite: bool,
    storage: Mapping[str, object],
    as_json: bool,
) -> None:
    """Save the fields of one sample as files.

    Each field becomes DIR/KEY.FIELD. No file lands outside DIR and no link below it is followed, whatever the key says.
    """
    dataset = open_dataset(root, storage_options=storage)
    sample = dataset.by_key(key)
    unknown = [name for name in fields or () if name not in sample]
    if unknown:
        raise ConfigError(f"{dataset.url}: sample {key!r} has no field {unknown[0]!r}; it has {', '.join(sample)}")
    files = extract(sample, output, fields=fields, overwrite=overwrite)
    if as_json:
        written = [{"field": file.field, "path": os.path.join(output, file.path), "bytes": file.size} for file in files]
        print_json({"key": sample.key, "sample_id": sample.sample_id, "shard": sample.shard, "files": written})
        return
    for file in files:
        click.echo(f"{printable(os.path.join(output, file.path))}  {size_text(file.size)}")
