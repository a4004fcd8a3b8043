"""Stream two shuffled epochs of decoded batches, as a training loop would, and resume in the middle of the second.

    python examples/stream_photos.py ROOT [--batch-size 32]

ROOT holds shards with ``jpg`` and ``txt``: a local folder or an object-store URL.
"""

import argparse
import json
import time

import janus_shards as js


def open_stream(root: str, batch_size: int) -> js.Loader:
    """A loader of 384 × 384 pictures in an order that seed 7 fixes."""
    return js.open_loader(
        root,
        batch_size=batch_size,
        fields=("jpg", "txt"),
        transform={"jpg": js.ImageTransform(size=384, fit="pad", engine="exact")},
        shuffle=True,
        seed=7,
    )


def run_epoch(loader: js.Loader, epoch: int) -> None:
    """One pass over the loader is one epoch."""
    start = time.perf_counter()
    num_samples = 0
    for batch in loader:
        if num_samples == 0:
            images = batch["jpg"]
            print(f"epoch {epoch}: first batch {images.dtype} {tuple(images.shape)}, first caption: {batch['txt'][0]}")
        num_samples += len(batch.keys)
    seconds = time.perf_counter() - start
    print(f"epoch {epoch}: {len(loader)} steps, {num_samples} samples, {num_samples / seconds:.0f} samples/s")


def show_resume(root: str, batch_size: int) -> None:
    """What follows a saved state is what would have followed without the interruption."""
    loader = open_stream(root, batch_size)
    batches = iter(loader)
    next(batches)
    state = json.dumps(loader.state_dict())  # plain data: store it where the model's checkpoint lies
    expected = next(batches).keys

    resumed = open_stream(root, batch_size)
    resumed.load_state_dict(json.loads(state))
    found = next(iter(resumed)).keys
    print(f"resumed from {len(state)} bytes of state: {'the same' if found == expected else 'ANOTHER'} next batch")


def main() -> None:
    """Stream and resume."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root")
    parser.add_argument("--batch-size", type=int, default=32)
    options = parser.parse_args()

    loader = open_stream(options.root, options.batch_size)
    for epoch in range(2):
        run_epoch(loader, epoch)
    show_resume(options.root, options.batch_size)


if __name__ == "__main__":
    main()
