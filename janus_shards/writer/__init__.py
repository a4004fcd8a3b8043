"""Writing: samples in, shards with indexes and a manifest out."""

from janus_shards.writer.writer import ShardWriter as ShardWriter
