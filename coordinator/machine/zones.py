"""The zones of a topic's partitions, as text: `a,b;b,c;c,a`.

Commas stand between the zones of a partition, semicolons between partitions. The lists repeat:
partition n has the one at n modulo their number, so one list is for all partitions, and a topic
that grows has zones for the new ones. An empty list is of a partition that is in no zone; the empty
text is that of a topic without zones.
"""

from musterd.coordinator.machine.limits import Limits
from musterd.coordinator.machine.quotation import quoted

Zones = tuple[tuple[str, ...], ...]
"""The lists, in their order. Zones of a list are in order of names."""

_FIRST, _LAST = "!", "~"


def zones_of(text: str) -> Zones:
    """Return the lists of a text in which nothing is wrong; of "" none."""
    return tuple(tuple(one.split(",")) if one else () for one in text.split(";")) if text else ()


def normal_zones(text: str) -> str:
    """Return the one form of a text in which nothing is wrong; "" where no list has a zone."""
    lists = [",".join(sorted(dict.fromkeys(zones))) for zones in zones_of(text)]
    return ";".join(lists) if any(lists) else ""


def wrong_zones(text: str, limits: Limits) -> str:
    """Return what is wrong with a text of zones; "" where nothing is."""
    size = len(text.encode())
    if size > limits.topic_zones_max_bytes:
        most = limits.topic_zones_max_bytes
        return f"The zones of a topic's partitions have at most {most} bytes; these have {size}."
    for zones in zones_of(text):
        if len(zones) > limits.partition_max_zones:
            most = limits.partition_max_zones
            return f"A partition is in at most {most} zones; here are {len(zones)}."
        for zone in zones:
            if not _is_zone(zone, limits):
                return (
                    f"{quoted(zone[:80])} is no name of a zone: it has 1 to {limits.id_max_bytes} "
                    "visible ASCII characters, and no commas and semicolons."
                )
    return ""


def _is_zone(zone: str, limits: Limits) -> bool:
    return 0 < len(zone) <= limits.id_max_bytes and all(_FIRST <= one <= _LAST for one in zone)
