"""Copy the hard inputs of ``../shared/cases`` that tests need into ``tests/data/cases``.

    python tools/copy_cases.py

The tests read the shared folder where it is, and this copy where the repository stands alone. Tars above 2 MB are kept
as ``.gz`` and unpacked by the tests: what is compared is their SHA-256, so the form on disk does not matter.
"""

import gzip
import shutil
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
SOURCE = REPOSITORY.parent / "shared" / "cases"
TARGET = REPOSITORY / "tests" / "data" / "cases"

_LARGE_BYTES = 2_000_000


def main() -> None:
    """Replace the copy."""
    shutil.rmtree(TARGET, ignore_errors=True)
    num_bytes = 0
    for path in sorted(path for path in SOURCE.rglob("*") if path.is_file()):
        target = TARGET / path.relative_to(SOURCE)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.stat().st_size > _LARGE_BYTES:
            target = target.with_name(target.name + ".gz")
            target.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        else:
            shutil.copyfile(path, target)
        num_bytes += target.stat().st_size
    print(f"{TARGET}: {num_bytes:,} bytes")


if __name__ == "__main__":
    main()
