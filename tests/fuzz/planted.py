"""Decoders that are broken on purpose: the hunt has to find each."""

import os
import signal
from random import Random

from tests.fuzz.decoders import MIB, Decoder

RARE = 97
"""One input in so many is taken badly."""


class DeclaredError(Exception):
    """What these may raise."""


def _is_rare(data: bytes) -> bool:
    return int.from_bytes(data, "big") % RARE == RARE - 1


def _make(rng: Random, _corpus: list[bytes]) -> bytes:
    return rng.randbytes(4)


def _raises(data: bytes) -> None:
    if _is_rare(data):
        raise KeyError(data)
    raise DeclaredError


def _ends(data: bytes) -> None:
    if _is_rare(data):
        os.kill(os.getpid(), signal.SIGSEGV)


def _exits(data: bytes) -> None:
    if _is_rare(data):
        raise SystemExit


def _holds(data: bytes) -> None:
    while _is_rare(data):
        pass


def _takes_much(data: bytes) -> None:
    bytes(4 * MIB)


def _takes_all(data: bytes) -> None:
    bytes(1 << 40 if _is_rare(data) else 1)


def _planted(name: str, decode: object) -> Decoder:
    return Decoder(name, decode, (DeclaredError,), _make, 0)  # type: ignore[arg-type]


PLANTED = (
    _planted("raises", _raises),
    _planted("ends", _ends),
    _planted("exits", _exits),
    _planted("holds", _holds),
    _planted("takes_much", _takes_much),
    _planted("takes_all", _takes_all),
)
