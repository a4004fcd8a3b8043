"""From an order of sample ids to batches of arrays: plan, fetch, decode, assemble, deliver in order."""
