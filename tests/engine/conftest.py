"""Lets spawned workers import the functions of ``worker_tasks``."""

import sys
from pathlib import Path

# Spawned processes get the parent's search path.
sys.path.insert(0, str(Path(__file__).parent))
