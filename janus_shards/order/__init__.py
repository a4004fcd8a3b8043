"""The order of samples as arithmetic: position in, sample out.

Pure functions of shard sizes, options, seed and epoch. Nothing here reads bytes, starts threads or looks at a clock.

::

    seeds    64-bit keys and permutations          blocks   runs of rows of one shard
    lanes    stretches of blocks, their grid       shuffle  one epoch: stored, full, or windows of blocks in lanes
    epoch    options -> Order -> EpochOrder        serving  steps, tails, and which rank serves what
    mixture  several data sets, their shares       draws    which of them comes where, and how often before
    mixture_order  its order                       planned  micro-batches in place of samples
    cursor   the state of a loader
"""
