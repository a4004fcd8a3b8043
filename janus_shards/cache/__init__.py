"""Caches between the loader and the store: decoded rows in memory, stored bytes and decoded rows on a local SSD.

::

    base     options, names of entries, counters     policy    what is admitted and evicted, as arithmetic
    entry    bytes of the files                      locks     ranges of one file, over threads and processes
    folder   the files and whose they are            usage     bytes of the file that shares the budget
    files    open files, a bounded number            budget    leases, epochs, making room
    shelf    finding, making, dropping entries       raw, decoded   one entry each
    disk     the SSD tier                            memory    the memory tier
    tiered   memory over disk

Nothing here starts a thread. Whatever goes wrong on disk is a miss, never an error.
"""
