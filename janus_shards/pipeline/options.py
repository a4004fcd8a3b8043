"""Options of the loader, and the sizes that follow from them and from the machine."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from janus_shards.engine.pool import usable_cores
from janus_shards.errors import ConfigError
from janus_shards.pipeline.bad_samples import BadSamples, Policy
from janus_shards.sample import RawBytes
from janus_shards.sizes import parse_bytes
from janus_shards.world import World

_DEFAULT_MEMORY_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """How the loader orders, decodes and bounds its work; the usual choices are arguments of ``open_loader``.

    Attributes:
        lanes: World-size-independent stretches of the order, or ``"mixed"`` to deal blocks to lanes anew each epoch.
        window: Blocks of a lane whose rows are shuffled together.
        block_rows: Rows a block; derived from the mean sample size when not given.
        tail: What becomes of samples that fill no whole step: ``drop``, ``pad`` (repeats, ``valid`` False) or
            ``uneven``.
        decode: False delivers the stored bytes of every field.
        decoders: Functions from bytes to a value, by the last dotted part of a field name.
        on_bad: What becomes of samples whose bytes are bad: ``raise``, ``skip``, ``substitute``, or ``BadSamples`` with
            a budget and a report.
        on_missing: ``raise``, or ``none`` to deliver ``None`` or zeros and a ``present`` flag.
        verify: Compare the XXH3-64 of everything read with the index.
        threads: Decoding threads; the cores of this process divided by the ranks of this node when not given.
        prefetch: Batches decoded ahead of the consumer.
        memory_bytes: Bytes in flight: fetched, decoded and batches together; a number or text such as ``"512MiB"``.
            Default: 1 GiB, or 1/8 of the machine's memory per local rank, the smaller.
    """

    lanes: int | Literal["mixed"] = 192
    window: int = 1
    block_rows: int | None = None
    tail: Literal["drop", "pad", "uneven"] = "drop"
    decode: bool = True
    decoders: Mapping[str, Callable[[RawBytes], object]] = field(default_factory=dict)
    on_bad: Policy | BadSamples = "raise"
    on_missing: Literal["raise", "none"] = "raise"
    verify: bool = True
    threads: int | None = None
    prefetch: int = 4
    memory_bytes: int | str | None = None

    def __post_init__(self) -> None:
        if self.tail not in ("drop", "pad", "uneven"):
            raise ConfigError(f"tail={self.tail!r}: expected 'drop', 'pad' or 'uneven'")
        _ = self.bad_samples  # checks the policy
        if self.on_missing not in ("raise", "none"):
            raise ConfigError(f"on_missing={self.on_missing!r}: expected 'raise' or 'none'")
        for name in ("threads", "prefetch", "block_rows", "window"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name}={value!r}: expected an integer of at least 1")
        if self.memory_bytes is not None:
            parse_bytes(self.memory_bytes, name="memory_bytes")

    @property
    def bad_samples(self) -> BadSamples:
        """``on_bad`` with its budget."""
        return self.on_bad if isinstance(self.on_bad, BadSamples) else BadSamples(policy=self.on_bad)

    def num_threads(self, world: World) -> int:
        """Decoding threads of this rank."""
        return self.threads or max(1, usable_cores() // world.local_world_size)

    def memory_limit(self, world: World) -> int:
        """Bytes in flight that this rank may hold."""
        if self.memory_bytes is not None:
            return parse_bytes(self.memory_bytes, name="memory_bytes")
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return min(_DEFAULT_MEMORY_BYTES, machine // 8 // world.local_world_size)
