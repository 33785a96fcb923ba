"""Kinds of faults that have a world of their own, of so many nodes."""

NODES = {"one_diverges": 3, "two_diverge": 5}
