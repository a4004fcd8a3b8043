"""Write the example photographs to shards, then read single samples back.

    python examples/write_and_read.py [ROOT]

ROOT is a new folder or an object-store URL (default: a temporary folder).
"""

import sys
import tempfile
from pathlib import Path

import janus_shards as js

PHOTOS = Path(__file__).resolve().parent / "photos"


def write(root: str) -> None:
    """Pack every photograph with its caption into shards of at most five samples."""
    with js.ShardWriter(root, prefix="photos", max_samples=5) as writer:
        for path in sorted(PHOTOS.glob("*.jpg")):
            caption = path.with_suffix(".txt").read_text("utf-8").strip()
            sample = {"__key__": path.stem, "jpg": path.read_bytes(), "txt": caption}
            writer.write(sample, columns={"caption_bytes": len(caption.encode())})


def read(root: str) -> None:
    """Show that nothing is read or decoded until a field is asked for, and then only that field."""
    ds = js.open_dataset(root)
    print(f"{len(ds)} samples, fields {ds.fields}, columns {ds.columns}")

    sample = ds.by_key("chelsea")
    print(f"{sample.key}: {len(sample.raw('jpg'))} bytes of JPEG, decoded {sample['jpg'].shape}: {sample['txt']}")

    wordy = ds.where(ds.column("caption_bytes") > 120)
    print(f"{len(wordy)} long captions, by one merged read:")
    for sample in wordy.read(range(len(wordy)), fields=("txt",)):
        print(f"  {sample.key}: {sample['txt']}")


def main() -> None:
    """Write and read."""
    if len(sys.argv) > 1:
        write(sys.argv[1])
        read(sys.argv[1])
        return
    with tempfile.TemporaryDirectory() as folder:
        root = f"{folder}/photos"
        write(root)
        read(root)


if __name__ == "__main__":
    main()
