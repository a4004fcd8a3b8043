"""Decoded entries: records of equal length, one a row of a block, read straight into the caller's buffers.

::

    made       whole, with an empty table, under a temporary name; then published
    a row      lock it over all processes; not in the table yet? record, then its checksum into the table; unlock
    a reader   row in the table? one preadv; the checksum once a process

A row is there when its checksum is in the table, and the checksum goes there when the record is written. So rows are
added to the published file, by several processes at a time, and whatever a crash leaves is either a row that is not in
the table or one whose checksum is wrong. A row in the table is never written again.

Source: docs/design/0003-cache.md.
"""

import errno
import os
import struct
import threading
from collections.abc import Callable

import xxhash

from janus_shards.cache.base import EntryKey, RecordBuffers
from janus_shards.cache.entry import DECODED, Header
from janus_shards.cache.files import EntryFile, OpenFile
from janus_shards.cache.policy import in_share
from janus_shards.cache.shelf import Shelf, block_place, new_nonce

_CHECK = struct.Struct("<Q")


class DecodedEntry:
    """The decoded rows of one block, shared by the threads of a process. Made by ``DiskCache.decoded``.

    Args:
        shelf: Where it lies.
        key: What it holds.
        num_rows: Rows of the block.
        record_bytes: Length of a record.
        share: Share of the blocks whose decoded rows are kept.
        on_release: Told when somebody is done with it.
    """

    def __init__(
        self,
        shelf: Shelf,
        key: EntryKey,
        *,
        num_rows: int,
        record_bytes: int,
        share: float,
        on_release: "Callable[[DecodedEntry], None]",
    ) -> None:
        self.key = key
        self._on_release = on_release
        self._shelf = shelf
        self._digest = key.digest
        self._record_bytes = record_bytes
        self._header = Header(
            kind=DECODED,
            identity=key.identity,
            payload_bytes=num_rows * record_bytes,
            num_rows=num_rows,
            record_bytes=record_bytes,
            nonce=new_nonce(),
        )
        self._start = self._header.payload_start
        self._place = block_place(self._digest)
        self._lock = threading.Lock()
        self._file: EntryFile | None = None
        self._may_be_made = in_share(self._digest, share)
        self._checks = [0] * num_rows
        self._present = bytearray(num_rows)
        self._unverified = bytearray(num_rows)
        # Rows that a thread of this process is writing: the lock in the file is the whole process's.
        self._busy: set[int] = set()

    def open(self) -> None:
        """Look for the file, and which rows it has."""
        file = self._shelf.find(self.key)
        if file is not None:
            self._adopt(file)

    def has(self, row: int) -> bool:
        """See ``DecodedRows``."""
        return self._present[row] != 0

    def read_into(self, row: int, buffers: RecordBuffers) -> bool:
        """See ``DecodedRows``. One system call without the GIL, straight into the buffers."""
        if not self._present[row]:
            return False
        file = self._file
        opened = file.get() if file is not None else None
        if opened is None:
            return self._lose()
        try:
            count = os.preadv(opened.fd, buffers, self._start + row * self._record_bytes)
        except OSError:
            count = -1
        if count != self._record_bytes or (self._unverified[row] and not self._verify(row, buffers)):
            return self._damaged(row, opened)
        return True

    def write(self, row: int, buffers: RecordBuffers) -> None:
        """See ``DecodedRows``. Nothing happens when the entry is not admitted, or another process has the row."""
        if self._present[row] or self._shelf.budget() is None:
            return
        with self._lock:
            if row in self._busy or not self._make():
                return
            self._busy.add(row)
        try:
            with self._shelf.locked(self._place + 1 + row, limit_s=0) as held:
                if held:
                    with self._shelf.trouble("storing a decoded row"):
                        self._write(row, buffers)
        finally:
            self._busy.discard(row)

    def release(self) -> None:
        """See ``DecodedRows``."""
        self._on_release(self)

    def close(self) -> None:
        """Close the file for all who use it; what was verified is remembered."""
        with self._lock:
            file, self._file, self._may_be_made = self._file, None, False
            rows = sum(1 << row for row, left in enumerate(self._unverified) if self._present[row] and not left)
            self._present = bytearray(len(self._present))
        if file is not None:
            file.close()
            if rows:
                self._shelf.set_verified(self._digest, self._header.nonce, rows)

    def _adopt(self, file: OpenFile) -> bool:
        """Use a file that is there; False when it has other records than these."""
        header = file.header
        if (header.kind, header.num_rows, header.record_bytes) != (
            DECODED,
            self._header.num_rows,
            self._header.record_bytes,
        ):
            self._may_be_made = False
            return False
        opened = self._shelf.open()
        if opened is None:
            return False
        verified = self._shelf.verified_rows(self._digest, header.nonce)
        if not self._shelf.options.verify:
            verified = -1
        self._header = header
        self._file = EntryFile(opened.files, self.key.file_name, file)
        self._checks = file.table
        self._unverified = bytearray(not verified >> row & 1 for row in range(header.num_rows))
        self._present = bytearray(check != 0 for check in file.table)
        return True

    def _make(self) -> bool:
        """Whether there is a file to write to; made at the first row, while no other process makes it."""
        if self._file is not None:
            return True
        if not self._may_be_made:
            return False
        with self._shelf.locked(self._place, limit_s=0) as held:
            if not held:
                return False
            found = self._shelf.find(self.key)
            if found is not None:
                return self._adopt(found)
            file = None
            with self._shelf.trouble("storing a decoded entry"):
                file = self._shelf.create(self.key, self._header, ())
            self._may_be_made = False
            return file is not None and self._adopt(file)

    def _write(self, row: int, buffers: RecordBuffers) -> None:
        opened = self._file.get() if self._file is not None else None
        if opened is None:
            self._lose()
            return
        place = self._header.table_start + 8 * row
        check = _CHECK.unpack(os.pread(opened.fd, 8, place))[0]
        if not check:
            check = record_check(buffers)
            start = self._start + row * self._record_bytes
            count = os.pwritev(opened.fd, buffers, start)
            if count != self._record_bytes:
                raise OSError(errno.ENOSPC, f"wrote {count} of the {self._record_bytes} bytes of a record")
            os.pwrite(opened.fd, _CHECK.pack(check), place)
        # From here on it is read; at the first time it is compared with its checksum like any other.
        self._checks[row] = check
        self._unverified[row] = self._shelf.options.verify
        self._present[row] = 1

    def _verify(self, row: int, buffers: RecordBuffers) -> bool:
        if record_check(buffers) != self._checks[row]:
            return False
        self._unverified[row] = 0
        return True

    def _damaged(self, row: int, opened: OpenFile) -> bool:
        """Take a row out of the table, so that it is decoded and written once more."""
        self._present[row] = 0
        self._shelf.count("damaged")
        with self._shelf.locked(self._place + 1 + row, limit_s=0) as held, self._shelf.trouble("dropping a row"):
            if held:
                os.pwrite(opened.fd, _CHECK.pack(0), self._header.table_start + 8 * row)
        return False

    def _lose(self) -> bool:
        """The file is gone, or another one has its name."""
        with self._lock:
            self._present = bytearray(len(self._present))
            self._file = None
            self._may_be_made = False
        return False


def record_check(buffers: RecordBuffers) -> int:
    """XXH3-64 of a record, with 1 for 0, which stands for no record."""
    if len(buffers) == 1:
        return xxhash.xxh3_64_intdigest(buffers[0]) or 1
    digest = xxhash.xxh3_64()
    for buffer in buffers:
        digest.update(buffer)
    return digest.intdigest() or 1


def damaged_rows(opened: OpenFile) -> list[int]:
    """Rows of an entry whose records have other checksums than the table, which is read anew."""
    header, found = opened.header, []
    for row in range(header.num_rows):
        check = _CHECK.unpack(os.pread(opened.fd, 8, header.table_start + 8 * row))[0]
        data = os.pread(opened.fd, header.record_bytes, header.record_start(row)) if check else b""
        if check and record_check([memoryview(data)]) != check:
            found.append(row)
    return found
