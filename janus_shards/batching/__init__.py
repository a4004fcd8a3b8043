"""Which rows make a micro-batch, decided from their lengths before a byte is read.

Pure functions of the lengths of rows in the order of an epoch. Nothing here reads bytes or knows where the order comes
from: a rule gets the rows of every lane, one after another, and says which of them go together.

::

    lane 0    3 9 3 4 8 3 | 4 9 3 4 ...     rows in epoch order, by length
              a b a a b a   c b a c         micro-batches; state crosses windows: nothing closes at a border
    lane 1    ...
    tail      what is open at the end of all lanes, in lane order, planned once more

    rule       the four rules' common face          lengths    index columns -> planned sizes
    plan       lanes, tail -> MicroBatches          encoding   MicroBatches <-> bytes
    budget     TokenBudget                          packing    Packing
    buckets    Buckets                              fixed      FixedSize
    classes    rows of like length, whole batches   collate    padding, masks, segments
"""
