"""`muster group`: consumer groups, as `kafka-consumer-groups.sh` has them."""

from muster.cli.group.commands import register

__all__ = ["register"]
