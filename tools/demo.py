"""The main job in front of one's eyes: make photographs, pack them, stream two shuffled epochs.

    python tools/demo.py

Runs the commands a user would type and prints each before it runs. Everything lies in demo/, which is made anew.
"""

import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Beside the interpreter: works in a virtual environment that is not activated.
JANUS_SHARDS = Path(sys.executable).with_name("janus-shards")
NUM_PHOTOS = 256
FOLDER = ROOT / "demo"


def commands() -> list[list[str]]:
    """What is run, in order."""
    photos, shards = str(FOLDER / "photos"), str(FOLDER / "shards")
    cli = str(JANUS_SHARDS)
    return [
        [sys.executable, str(ROOT / "tools/make_corpus.py"), photos, "--count", str(NUM_PHOTOS)],
        [cli, "pack", photos, shards, "--shard-size", "8MB"],
        [cli, "info", shards],
        [cli, "ls", shards, "--limit", "3"],
        [cli, "verify", shards],
        [sys.executable, str(ROOT / "examples/stream_photos.py"), shards],
    ]


def shown(command: list[str]) -> str:
    """A command as one would type it in the repository's folder."""
    short = [part.removeprefix(f"{ROOT}/").removeprefix(f"{Path(sys.executable).parent}/") for part in command]
    return shlex.join(short)


def main() -> int:
    """Run the demo; the exit code of the first command that fails, else 0."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    start = time.perf_counter()
    for command in commands():
        print(f"\n$ {shown(command)}", flush=True)
        code = subprocess.run(command, check=False).returncode
        if code != 0:
            return code
    print(f"\nDone in {time.perf_counter() - start:.0f} s; look around in demo/")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
