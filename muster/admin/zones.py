"""The zones of a topic's partitions, as lists in programs and as text on the wire (admin.proto)."""

from collections.abc import Collection, Sequence

from muster.errors import InvalidRequest

Zones = tuple[tuple[str, ...], ...]


def zones_of(text: str) -> Zones:
    """Return a list of zones for each partition, which repeat; of "" none."""
    return tuple(tuple(one.split(",")) if one else () for one in text.split(";")) if text else ()


def zones_text(zones: Sequence[Collection[str]]) -> str:
    """Return the text of such lists, in the one form in which the registry has them.

    Raises:
        InvalidRequest: a zone has a separator in it, or lists are text.
    """
    if isinstance(zones, str) or any(isinstance(one, str) for one in zones):
        raise InvalidRequest(
            f"zones {zones!r} are no lists of zones: one for each partition, such as "
            "[['a', 'b'], ['b', 'c']]"
        )
    for zone in (zone for one in zones for zone in one):
        if not zone or "," in zone or ";" in zone:
            raise InvalidRequest(f"{zone!r} is no name of a zone")
    lists = [",".join(sorted(set(one))) for one in zones]
    return ";".join(lists) if any(lists) else ""
