"""Write the frozen plans of ``tests/data/plans``.

Run it only together with a new ``PLAN_VERSION``: a difference in these files means that saved states no longer mean
what they meant.
"""

import json
from pathlib import Path

import numpy as np

from janus_shards.batching.buckets import Buckets
from janus_shards.batching.budget import TokenBudget
from janus_shards.batching.fixed import FixedSize
from janus_shards.batching.packing import Packing
from janus_shards.batching.rule import BatchRule
from janus_shards.order.seeds import keys

RULES: dict[str, BatchRule] = {
    "budget": TokenBudget(column="tokens", max_tokens=256),
    "quadratic": TokenBudget(column="tokens", max_tokens=400, quadratic=100, max_samples=6, pad_multiple=8),
    "buckets": Buckets(column="tokens", shapes=(8, 24, 64), batch_size=(5, 3, 2)),
    "packing": Packing(column="tokens", max_tokens=96),
    "fixed": FixedSize(column="tokens", batch_size=4, pool_batches=3),
}


def main() -> None:
    """Write one file a rule."""
    folder = Path(__file__).parents[1] / "tests" / "data" / "plans"
    folder.mkdir(parents=True, exist_ok=True)
    # Long-tailed lengths from 1 to 64: products of two even ones.
    bits = keys(5, 200)
    lengths = 1 + (bits % np.uint64(8)) * ((bits >> np.uint64(8)) % np.uint64(10)).clip(max=9)
    lanes = [lane.tolist() for lane in np.split(lengths.clip(max=64).astype(np.int64), [90, 91])]
    borders = np.append(0, np.cumsum([len(lane) for lane in lanes]))
    for name, rule in RULES.items():
        sizes = rule.sizes({"tokens": np.concatenate(lanes)}).values
        plan = rule.plan(sizes, borders)
        golden = {
            "rule": type(rule).__name__,
            "options": {key: getattr(rule, key) for key in rule.__dataclass_fields__},  # type: ignore[attr-defined]
            "lanes": lanes,
            "description": rule.describe(sizes),
            "batches": [rows.tolist() for rows in np.split(plan.rows, plan.offsets[1:-1])],
            "lane_batches": plan.lanes.tolist(),
            "shapes": plan.shapes.tolist(),
        }
        (folder / f"{name}.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
