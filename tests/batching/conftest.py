import numpy as np
import pytest

from janus_shards.batching.buckets import Buckets
from janus_shards.batching.budget import TokenBudget
from janus_shards.batching.fixed import FixedSize
from janus_shards.batching.packing import Packing

RULES = {
    "budget": TokenBudget(column="tokens", max_tokens=64),
    "budget-all-options": TokenBudget(
        column="tokens", max_tokens=200, max_length=40, max_samples=5, quadratic=64, pad_multiple=8, extra_tokens=3
    ),
    "buckets": Buckets(column="tokens", shapes=(8, 24, 64), batch_size=(5, 3, 2)),
    "packing": Packing(column="tokens", max_tokens=64),
    "packing-one-bin": Packing(column="tokens", max_tokens=70, open_bins=1, max_length=50),
    "fixed": FixedSize(column="tokens", batch_size=4, pool_batches=3),
}


@pytest.fixture(params=RULES.values(), ids=RULES)
def rule(request):
    """Each rule, with few and with all options; all take lengths up to 64."""
    return request.param


@pytest.fixture
def planned():
    """Plans lengths, lane after lane, and gives sizes, borders and plan."""

    def plan(rule, lanes, **kwargs):
        lengths = np.array([length for lane in lanes for length in lane], np.int64)
        borders = np.append(0, np.cumsum([len(lane) for lane in lanes])).astype(np.int64)
        sizes = rule.sizes({"tokens": lengths}).values
        return sizes, borders, rule.plan(sizes, borders, **kwargs)

    return plan
