"""Write the frozen mixtures of ``tests/data/mixtures``.

Run it only together with a new ``MIXTURE_VERSION``: a difference in these files means that saved states no longer mean
what they meant.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from janus_shards.order.epoch import OrderOptions
from janus_shards.order.mixture import Mixture
from janus_shards.order.mixture_order import SourceTable, open_mixture

CASES: dict[str, dict[str, Any]] = {
    "proportion": {
        "sizes": [300, 77, 5],
        "epoch": 2,
        "unit": 1,
        "options": {"seed": 7},
        "mixture": {"kind": "proportion", "sources": {"a": 0.7, "b": 0.2, "c": 0.1}, "schedule": [[800, {"b": 1}]]},
    },
    "repeat": {
        "sizes": [120, 60],
        "epoch": 0,
        "unit": 8,
        "options": {"seed": 1, "lanes": 6, "block_rows": 4},
        "mixture": {"kind": "repeat", "sources": {"a": 1, "b": 2.5}, "one_source": "rank", "schedule": []},
    },
    "choose": {
        "sizes": [100, 200],
        "epoch": 3,
        "unit": 10,
        "options": {"seed": 2**63 + 1, "shuffle": "full"},
        "mixture": {"kind": "choose", "sources": {"a": 30, "b": 70}, "one_source": "global", "schedule": []},
    },
}


def main() -> None:
    """Write one file a case."""
    folder = Path(__file__).parents[1] / "tests" / "data" / "mixtures"
    folder.mkdir(parents=True, exist_ok=True)
    for name, case in CASES.items():
        tables = []
        for size in case["sizes"]:
            rows = np.array([*[60] * (size // 60), size % 60])
            tables.append(SourceTable(shard_rows=rows, shard_bytes=rows * 75_000))
        mixture = Mixture(**{**case["mixture"], "schedule": [tuple(piece) for piece in case["mixture"]["schedule"]]})
        order = open_mixture(mixture, tables, OrderOptions(**case["options"]), unit=case["unit"])
        ids = order.epoch(case["epoch"]).slots(0, order.num_samples).sample_ids
        golden = {**case, "description": order.describe(), "sample_ids": ids.tolist()}
        (folder / f"{name}.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
