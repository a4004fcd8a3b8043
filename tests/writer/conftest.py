"""Data sets written by tests, and what lies on disk afterwards."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def digests() -> Callable[[Path], dict[str, str]]:
    """SHA-256 of every file in a folder, hidden ones included, by name."""

    def of(folder: Path) -> dict[str, str]:
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}

    return of
