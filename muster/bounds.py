"""The bounds of settings of the SDK, checked where they are given (docs/configuration.md)."""

from typing import Final

from muster.errors import InvalidConfig

MS_MAX: Final = 2_147_483_647
"""What the wire has room for."""
ID_BYTES_MAX: Final = 249
"""Bytes of a group, instance or topic id in UTF-8 (arch-5)."""
CLIENT_ID_BYTES_MAX: Final = ID_BYTES_MAX - 33
"""A member id is the client id, a dash and 32 digits."""
CAPACITY_MIN: Final = 0.001
CAPACITY_MAX: Final = 1000
"""What a coordinator that assigns takes of a member; it counts thousandths."""


def check_ms(name: str, value: int, least: int = 1) -> int:
    """Return a time in milliseconds. Raises InvalidConfig where it is out of bounds."""
    if not least <= value <= MS_MAX:
        raise InvalidConfig(f"{name} is {value} ms; {least} to {MS_MAX} are possible")
    return value


def check_id(name: str, value: str, most: int = ID_BYTES_MAX) -> str:
    """Return an id. Raises InvalidConfig where it is empty or too long."""
    size = len(value.encode())
    if not 0 < size <= most:
        raise InvalidConfig(f"{name} has {size} bytes; 1 to {most} are possible")
    return value
