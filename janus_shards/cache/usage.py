"""The bytes of the ``usage`` file, by which processes share one budget. Bytes in, bytes out; no I/O.

::

    0    magic, version, number of slots, boot id, total, tick, check
    64   slots of 64 bytes: data set, epoch, began, previous, leased, check; spent; reserved

``total`` is the size of all entries, and what is leased and not yet spent. A slot belongs to whoever locks its byte in
the ``locks`` file. Everything is written under one lock, except ``spent``, which the owner of a slot writes alone: by
it, counting the folder after a crash tells what a living process has still to spend.

Source: docs/design/0003-cache.md.
"""

import struct
from dataclasses import dataclass, field

import xxhash

from janus_shards.cache.policy import Clock

_MAGIC = b"JSHUSAGE"
_VERSION = 1
NUM_SLOTS = 255
_HEAD = struct.Struct("<8sII16sQQ")
_SLOT = struct.Struct("<QqQQQ")
_U64 = struct.Struct("<Q")
_ROW_BYTES = 64
FILE_BYTES = _ROW_BYTES * (1 + NUM_SLOTS)
_SPENT_OFFSET = _SLOT.size + _U64.size


@dataclass(slots=True)
class Slot:
    """What one process uses.

    Attributes:
        data_set: Tag of its data set; 0 when the slot was never used.
        clock: Where it stands. Both stay when the process ends, for whoever goes on with its run.
        leased: Bytes taken from the budget, spent ones included since they were last settled.
        spent: Of these, bytes that are entries now.
    """

    data_set: int = 0
    clock: Clock = field(default_factory=Clock)
    leased: int = 0
    spent: int = 0

    @property
    def unspent(self) -> int:
        """Bytes that were taken from the budget and are no entries yet."""
        return max(0, self.leased - self.spent)

    def settle(self) -> None:
        """Forget what was spent: the entries are counted by themselves."""
        self.leased, self.spent = self.unspent, 0


@dataclass(slots=True)
class Usage:
    """The whole file.

    Attributes:
        boot: Names the run of the machine in which it was written; what a power failure left may not fit together.
        total: Bytes of the budget that are taken.
        tick: The folder's clock.
        slots: ``NUM_SLOTS`` of them.
    """

    boot: bytes = b"\0" * 16
    total: int = 0
    tick: int = 0
    slots: list[Slot] = field(default_factory=lambda: [Slot() for _ in range(NUM_SLOTS)])

    def encode(self) -> bytes:
        """``FILE_BYTES`` bytes."""
        head = _HEAD.pack(_MAGIC, _VERSION, NUM_SLOTS, self.boot, self.total, self.tick)
        rows = [head + _check(head)]
        for slot in self.slots:
            clock = slot.clock
            fixed = _SLOT.pack(slot.data_set, clock.epoch, clock.began, clock.previous, slot.leased)
            rows.append(fixed + _check(fixed) + _U64.pack(slot.spent))
        return b"".join(row.ljust(_ROW_BYTES, b"\0") for row in rows)

    @classmethod
    def decode(cls, data: bytes) -> "Usage | None":
        """The file, or ``None`` when it is damaged, empty or of another version."""
        if len(data) != FILE_BYTES:
            return None
        head = data[: _HEAD.size]
        magic, version, num_slots, boot, total, tick = _HEAD.unpack(head)
        if (magic, version, num_slots) != (_MAGIC, _VERSION, NUM_SLOTS) or not _holds(data, 0, _HEAD.size):
            return None
        slots = []
        for start in range(_ROW_BYTES, FILE_BYTES, _ROW_BYTES):
            if data[start : start + _ROW_BYTES] == _EMPTY_SLOT:
                slots.append(Slot())
                continue
            if not _holds(data, start, _SLOT.size):
                return None
            data_set, epoch, began, previous, leased = _SLOT.unpack_from(data, start)
            (spent,) = _U64.unpack_from(data, start + _SPENT_OFFSET)
            slots.append(Slot(data_set, Clock(epoch, began, previous), leased, spent))
        return cls(boot, total, tick, slots)


def spent_offset(slot: int) -> int:
    """Where the owner of a slot writes what it has spent, as ``encode_spent``."""
    return _ROW_BYTES * (1 + slot) + _SPENT_OFFSET


def encode_spent(spent: int) -> bytes:
    """8 bytes."""
    return _U64.pack(spent)


def _check(data: bytes) -> bytes:
    return _U64.pack(xxhash.xxh3_64_intdigest(data))


def _holds(data: bytes, start: int, size: int) -> bool:
    return data[start + size : start + size + 8] == _check(data[start : start + size])


_FIXED_EMPTY = _SLOT.pack(0, -1, 0, 0, 0)
_EMPTY_SLOT = (_FIXED_EMPTY + _check(_FIXED_EMPTY) + _U64.pack(0)).ljust(_ROW_BYTES, b"\0")
