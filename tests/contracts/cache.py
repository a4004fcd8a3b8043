"""The contract of a tier of decoded rows. A tier's test class inherits it and says how to open a block."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from janus_shards.cache.base import DecodedRows

NUM_ROWS = 4
RECORD_BYTES = 300


def record(seed: int) -> NDArray[np.uint8]:
    """A record of random bytes, shape ``(300,)``."""
    return np.random.default_rng(seed).integers(0, 256, RECORD_BYTES, dtype=np.uint8)


def write(rows: DecodedRows, row: int, data: NDArray[np.uint8]) -> None:
    """Keep a record that lies in one piece."""
    rows.write(row, [memoryview(data)])


def read(rows: DecodedRows, row: int) -> NDArray[np.uint8] | None:
    """A record, or ``None`` when it is not there."""
    out = np.zeros(RECORD_BYTES, np.uint8)
    return out if rows.read_into(row, [memoryview(out)]) else None


class DecodedRowsContract:
    @pytest.fixture
    def rows(self) -> DecodedRows:
        """An empty block of ``NUM_ROWS`` rows of ``RECORD_BYTES`` bytes, with room for all of them."""
        raise NotImplementedError

    def test_rows_come_back_as_written(self, rows: DecodedRows) -> None:
        """What was written is read back, row by row, in any order; what was not written is not there."""
        for row in (2, 0):
            write(rows, row, record(row))
        assert [rows.has(row) for row in range(NUM_ROWS)] == [True, False, True, False]
        for row in (0, 2):
            np.testing.assert_array_equal(read(rows, row), record(row))
        assert read(rows, 1) is None

    def test_outputs_are_one_record(self, rows: DecodedRows) -> None:
        """Several buffers, of any item type, hold the outputs of one row, in their order."""
        labels, picture = np.array([7, 8], np.int64), record(1)[: RECORD_BYTES - 16].reshape(2, -1)
        rows.write(1, [memoryview(labels), memoryview(picture)])
        found = np.zeros(2, np.int64), np.zeros(picture.shape, np.uint8)
        assert rows.read_into(1, [memoryview(found[0]), memoryview(found[1])])
        np.testing.assert_array_equal(found[0], labels)
        np.testing.assert_array_equal(found[1], picture)

    def test_what_is_kept_is_a_copy(self, rows: DecodedRows) -> None:
        """The batch may be changed after it was kept, as augmentation does, and after it was read."""
        data = record(0)
        write(rows, 0, data)
        data[:] = 0
        found = read(rows, 0)
        assert found is not None
        found[:] = 0
        np.testing.assert_array_equal(read(rows, 0), record(0))

    def test_first_record_stays(self, rows: DecodedRows) -> None:
        """A row that is there is not written again: others may be reading it."""
        write(rows, 3, record(3))
        write(rows, 3, record(4))
        np.testing.assert_array_equal(read(rows, 3), record(3))

    def test_threads_share_a_block(self, rows: DecodedRows) -> None:
        """Threads may write and read the rows of a block at once; nobody ever sees another row's bytes."""

        def work(number: int) -> bool:
            row = number % NUM_ROWS
            write(rows, row, record(row))
            found = read(rows, row)
            return found is None or bool(np.array_equal(found, record(row)))

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(400)))
        assert all(rows.has(row) for row in range(NUM_ROWS))
