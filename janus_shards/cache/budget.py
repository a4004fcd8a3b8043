"""The budget, shared by processes: leases, the clock of epochs, and making room.

A process takes bytes from the budget in leases, and so writes to the ``usage`` file once for many entries. What it
holds when it dies is known by its slot, whose lock the kernel frees: whoever leases next counts the folder anew and
removes what the dead one left unfinished.
"""

import errno
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from janus_shards.cache.base import CacheOptions, data_set_tag
from janus_shards.cache.entry import Stamp
from janus_shards.cache.folder import CacheFolder, FolderFile
from janus_shards.cache.locks import RangeLocks, wait_for
from janus_shards.cache.policy import Consumer, Resident, eviction_order, lease_bytes
from janus_shards.cache.usage import FILE_BYTES, NUM_SLOTS, Slot, Usage, encode_spent, spent_offset

# Places in the `locks` file. Blocks have theirs behind, by digest.
_USAGE_PLACE = 0
_SLOT_PLACES = 1
# Counting a folder of a million files takes some seconds; nobody holds the lock for longer.
_LOCK_WAIT_S = 30.0
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class BusyError(OSError):
    """The ``usage`` file stayed locked, or all slots are taken."""


class GoneError(OSError):
    """What the processes share was removed."""


class Budget:
    """One process's part in the budget of a folder. Safe to use from many threads.

    Args:
        folder: The folder.
        locks: How bytes are locked.
        options: Budget and floor.
        data_set: Fingerprint of the data set that is read.

    Attributes:
        evicted: Entries that this process evicted.
        locks_fd: The open ``locks`` file.
    """

    def __init__(self, folder: CacheFolder, locks: RangeLocks, options: CacheOptions, data_set: str) -> None:
        self._folder = folder
        self._locks = locks
        self._budget_bytes = options.budget_bytes
        self._floor_bytes = options.floor_bytes
        self._data_set = data_set_tag(data_set)
        self._lock = threading.Lock()
        self._usage_fd = folder.open_shared("usage")
        self.locks_fd = folder.open_shared("locks")
        self._is_open = True
        self._slot: int | None = None
        self._left = 0
        self._spent = 0
        self._refused: int | None = None
        self._candidates: list[Resident] | None = None
        self._epoch = (0, 0)
        self._began = False
        # When the epoch before this one began, and when this one did; at first, when the folder was opened.
        self._starts_ns = (time.time_ns(), time.time_ns())
        self.evicted = 0
        # Says at once whether there are locks.
        locks.unlock(self.locks_fd, _USAGE_PLACE)

    def begin_epoch(self, epoch: int, *, whole: bool) -> None:
        """A consumer of this process begins an epoch; ``whole`` says that the one before it was served whole."""
        with self._lock, self._usage() as usage:
            is_new = not self._began
            slot = self._own_slot(usage, epoch)
            if not is_new and slot.clock.epoch == epoch:
                return
            usage.tick += 1
            slot.clock = slot.clock.next(epoch, tick=usage.tick, whole=whole)
            self._epoch = (epoch, usage.tick)
            if not is_new:
                self._starts_ns = (self._starts_ns[1], time.time_ns())
            self._began = True
            self._refused = self._candidates = None

    @property
    def stamp(self) -> Stamp:
        """What touching an entry now writes."""
        epoch, began = self._epoch
        return Stamp(self._data_set, epoch, began)

    @property
    def slot(self) -> int:
        """The slot of this process; there is one once something was reserved."""
        return self._slot or 0

    def admits(self, num_bytes: int) -> bool:
        """Whether so many bytes would be admitted now.

        Raises:
            OSError: The budget has room, but the disk has not.
        """
        with self._lock:
            return self._ensure(num_bytes)

    def reserve(self, num_bytes: int) -> bool:
        """Take bytes for an entry, if it is admitted; ``spend`` or ``refund`` them afterwards.

        Raises:
            OSError: The budget has room, but the disk has not.
        """
        with self._lock:
            if not self._ensure(num_bytes):
                return False
            self._left -= num_bytes
            return True

    def refund(self, num_bytes: int) -> None:
        """The entry did not come to be."""
        with self._lock:
            self._left += num_bytes

    def spend(self, num_bytes: int) -> None:
        """The entry is in the folder, and is counted there from now on."""
        with self._lock:
            self._spent += num_bytes
            os.pwrite(self._usage_fd, encode_spent(self._spent), spent_offset(self.slot))

    def remove(self, name: str) -> None:
        """Remove a damaged entry and give back what it took."""
        with self._lock, self._usage() as usage:
            usage.total = max(0, usage.total - (self._folder.remove(name) or 0))

    def total_bytes(self) -> int:
        """Size of all entries, as far as it is accounted for; without a lock, for people."""
        usage = Usage.decode(os.pread(self._usage_fd, FILE_BYTES, 0)) or Usage()
        return usage.total - sum(slot.unspent for slot in usage.slots)

    def num_processes(self) -> int:
        """How many hold a slot now; this one does when it has leased something."""
        return sum(self._lives(number) for number in range(NUM_SLOTS))

    def clear(self) -> tuple[int, int]:
        """Remove every entry, and what dead processes left unfinished: how many files, and how many bytes."""
        freed = []
        with self._lock, self._usage() as usage:
            self._count(usage)
            for file in self._folder.scan():
                if file.slot is None:
                    freed.append(self._folder.remove(file.name))
            self._count(usage)
        sizes = [size for size in freed if size is not None]
        return len(sizes), sum(sizes)

    def close(self) -> None:
        """Give back what was not spent."""
        if self._is_open:
            with self._lock, suppress(OSError):
                if self._slot is not None:
                    with self._usage() as usage:
                        slot = usage.slots[self._slot]
                        self._settle(slot)
                        usage.total = max(0, usage.total - slot.leased)
                        slot.leased = 0
        self.forget()

    def forget(self) -> None:
        """Close the files, which frees the slot unless another process has it; what it holds stays in the books."""
        if self._is_open:
            self._is_open = False
            os.close(self._usage_fd)
            os.close(self.locks_fd)

    def _ensure(self, num_bytes: int) -> bool:
        if num_bytes <= self._left:
            return True
        if self._refused is not None and num_bytes >= self._refused:
            return False
        leased = False
        try:
            leased = num_bytes <= self._budget_bytes and self._lease(num_bytes - self._left)
        finally:
            if not leased:
                self._refused = num_bytes
        return leased

    def _lease(self, needed: int) -> bool:
        """Take at least ``needed`` bytes more from the budget."""
        with self._usage() as usage:
            slot = self._own_slot(usage, self._epoch[0])
            self._settle(slot)
            if any(other.leased and not self._lives(number) for number, other in enumerate(usage.slots)):
                self._count(usage)
            leased = self._room_for(usage, needed)
            if not leased:
                leased = self._make_room(usage, needed)
            slot.leased += leased
            usage.total += leased
            is_full = usage.total + needed > self._budget_bytes
        self._left += leased
        if not leased and not is_full:
            free = self._folder.free_bytes()
            raise OSError(errno.ENOSPC, f"{free} bytes are free, {self._floor_bytes} are to stay free")
        return leased > 0

    def _settle(self, slot: Slot) -> None:
        slot.spent = self._spent
        slot.settle()
        self._spent = 0

    def _room_for(self, usage: Usage, needed: int) -> int:
        """How much may be leased as things are; 0 for not enough."""
        unspent = sum(slot.unspent for slot in usage.slots)
        above_floor = self._folder.free_bytes() - unspent - self._floor_bytes
        room = min(self._budget_bytes - usage.total, above_floor)
        return lease_bytes(needed, room_bytes=max(0, room), budget_bytes=self._budget_bytes)

    def _make_room(self, usage: Usage, needed: int) -> int:
        """Evict until there is room, and how much may then be leased."""
        if self._candidates is None:
            # At most once an epoch, so that a full cache costs nothing at every block.
            files = list(self._folder.scan())
            self._count(usage, files)
            self._candidates = self._evictable(usage, files)[::-1]
        leased = self._room_for(usage, needed)
        while not leased and self._candidates:
            candidate = self._candidates.pop()
            freed = self._folder.remove(candidate.name, expected=candidate.stamp)
            if freed is not None:
                usage.total = max(0, usage.total - freed)
                self.evicted += 1
            leased = self._room_for(usage, needed)
        return leased

    def _evictable(self, usage: Usage, files: Iterable[FolderFile]) -> list[Resident]:
        consumers = [
            Consumer(slot.data_set, slot.clock.previous)
            for number, slot in enumerate(usage.slots)
            if slot.data_set and self._lives(number)
        ]
        residents = []
        for file in files:
            # What was written since this process's last epoch began is in use; most entries need not be opened for it.
            found = self._folder.peek(file.name) if file.slot is None and file.touched_ns < self._starts_ns[0] else None
            if found is not None:
                residents.append(Resident(file.name, file.num_bytes, found[1], file.touched_ns))
        return eviction_order(residents, consumers)

    def _count(self, usage: Usage, files: Iterable[FolderFile] | None = None, left: int | None = None) -> None:
        """Count the folder anew, and remove what dead processes left unfinished; ``left`` is a slot of such a one."""
        lives = [number != left and self._lives(number) for number in range(NUM_SLOTS)]
        for slot, alive in zip(usage.slots, lives, strict=True):
            if not alive:
                slot.leased = slot.spent = 0
        total = sum(slot.unspent for slot in usage.slots)
        for file in self._folder.scan() if files is None else files:
            is_left = file.slot is not None and (file.slot >= NUM_SLOTS or not lives[file.slot])
            if is_left and self._folder.remove(file.name) is not None:
                continue
            # Unfinished files of living processes are part of their leases.
            if file.slot is None or is_left:
                total += file.num_bytes
        usage.total = total

    def _lives(self, number: int) -> bool:
        """Whether somebody holds a slot; those of this process are held by it."""
        if number == self._slot:
            return True
        if not self._locks.try_lock(self.locks_fd, _SLOT_PLACES + number):
            return True
        self._locks.unlock(self.locks_fd, _SLOT_PLACES + number)
        return False

    def _own_slot(self, usage: Usage, epoch: int) -> Slot:
        """The slot of this process; at first one of a process that is gone, best of one whose run this one goes on."""
        if self._slot is None:
            order = sorted(range(NUM_SLOTS), key=lambda number: self._suits(usage.slots[number], epoch))
            taken = next((n for n in order if self._locks.try_lock(self.locks_fd, _SLOT_PLACES + n)), None)
            if taken is None:
                raise BusyError(f"all {NUM_SLOTS} slots of {self._folder.path} are taken")
            if usage.slots[taken].leased:
                # Its owner died. What it left under the slot's number is removed before the number is this process's.
                self._count(usage, left=taken)
            self._slot = taken
        if usage.slots[self._slot].data_set != self._data_set:
            usage.slots[self._slot] = Slot(data_set=self._data_set)
        return usage.slots[self._slot]

    def _suits(self, slot: Slot, epoch: int) -> tuple[int, int]:
        goes_on = slot.data_set == self._data_set and slot.clock.epoch in (epoch - 1, epoch)
        return (0 if goes_on else 1 if not slot.data_set else 2, slot.clock.began)

    @contextmanager
    def _usage(self) -> Iterator[Usage]:
        """The ``usage`` file, locked; what the block changes is written at its end."""
        if not wait_for(self._locks, self.locks_fd, _USAGE_PLACE, limit_s=_LOCK_WAIT_S):
            raise BusyError(f"{self._folder.path}/usage stayed locked for {_LOCK_WAIT_S:.0f} s")
        try:
            if not os.fstat(self._usage_fd).st_nlink or not os.fstat(self.locks_fd).st_nlink:
                # Whoever comes later agrees on other files.
                raise GoneError(errno.ENOENT, "usage or locks were removed")
            data = os.pread(self._usage_fd, FILE_BYTES, 0)
            usage = self._checked(Usage.decode(data))
            yield usage
            changed = usage.encode()
            if changed != data:
                os.pwrite(self._usage_fd, changed, 0)
        finally:
            self._locks.unlock(self.locks_fd, _USAGE_PLACE)

    def _checked(self, usage: Usage | None) -> Usage:
        """What was read, or a fresh count where that is damaged or from before the machine failed."""
        boot = boot_id()
        if usage is None or usage.boot != boot:
            if not any(self._lives(number) for number in range(NUM_SLOTS)):
                usage = usage or Usage()
                usage.boot = boot
                self._count(usage)
            elif usage is None:
                raise BusyError(f"{self._folder.path}/usage was damaged while in use")
        return usage


def boot_id() -> bytes:
    """16 bytes that name this run of the machine; zeros where the system does not say."""
    try:
        with open(_BOOT_ID) as file:
            return bytes.fromhex(file.read().strip().replace("-", ""))[:16].ljust(16, b"\0")
    except (OSError, ValueError):
        return b"\0" * 16
