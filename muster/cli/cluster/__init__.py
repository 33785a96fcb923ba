"""`muster cluster`: nodes and shards, and whether all nodes hold the same state."""

from muster.cli.cluster.commands import register

__all__ = ["register"]
