"""Write the frozen orders of ``tests/data/order``.

Run it only together with a new ``ORDER_VERSION``: a difference in these files means that saved states no longer mean
what they meant.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from janus_shards.order.epoch import OrderOptions, open_order

CASES: dict[str, dict[str, Any]] = {
    "lanes": {"shard_rows": [300, 0, 77, 512], "epoch": 0, "options": {"seed": 0}},
    "windows": {
        "shard_rows": [64] * 12,
        "epoch": 3,
        "options": {"seed": 7, "lanes": 12, "block_rows": 8, "window": 2},
    },
    "full": {"shard_rows": [100, 1, 200], "epoch": 12, "options": {"seed": 2**63 + 1, "shuffle": "full"}},
}


def main() -> None:
    """Write one file a case."""
    folder = Path(__file__).parents[1] / "tests" / "data" / "order"
    folder.mkdir(parents=True, exist_ok=True)
    for name, case in CASES.items():
        rows = np.array(case["shard_rows"])
        order = open_order(rows, rows * 75_000, OrderOptions(**case["options"]))
        ids = order.epoch(case["epoch"]).slots(0, order.num_samples).sample_ids
        golden = {**case, "order_hash": order.order_hash, "sample_ids": ids.tolist()}
        (folder / f"{name}.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
