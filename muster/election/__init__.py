"""Leader election: a group with one thing to own, and a fencing token for who owns it."""
