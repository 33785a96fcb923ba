"""Named tasks instead of partitions: what there is to do, who does it, and doing it."""
