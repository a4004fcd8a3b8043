from pathlib import Path

import pytest

from janus_shards.storage.memory import MemoryStorage
from tests.contracts.storage import StorageContract


class TestMemoryStorage(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> MemoryStorage:
        """An empty storage."""
        return MemoryStorage()
