"""Flaws of commands: what stock SyncObj unpickles and retries, and Replica does not."""

import pickle
from collections.abc import Callable
from typing import Any

import pysyncobj.pickle as library_pickle
import pytest

from tests.raft.flaws.hand import Group
from tests.raft.flaws.hand_stock import PlainNode, StockGroup

Make = Callable[..., Group]


executed: list[str] = []


def run_planted(text: str) -> str:
    """What a hostile pickle makes its reader call."""
    executed.append(text)
    return text


class Planted:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], str], tuple[str]]:
        return run_planted, ("planted",)


def test_f6_bytes_of_a_peer_are_never_unpickled(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pso-F6: no command of a peer reaches pickle, and none changes the membership."""
    g = make()
    g.elect(0)
    g.replicate(0, [1, 2])
    unpickled: list[bytes] = []
    real = library_pickle.loads

    def spy(data: bytes, *args: Any, **kwargs: Any) -> Any:
        unpickled.append(bytes(data))
        return real(data, *args, **kwargs)

    monkeypatch.setattr(library_pickle, "loads", spy)
    monkeypatch.setattr(pickle, "loads", spy)
    executed.clear()
    members = g.others(0)
    hostile = PlainNode(2, extra=Planted())
    g.plant(0, b"\x02" + pickle.dumps(["rem", 2, hostile]), from_peer=1)
    for _ in range(3):
        g.replicate(0, [1, 2])
    assert bool(unpickled) is g.stock
    assert bool(executed) is g.stock
    if isinstance(g, StockGroup):
        assert len(g.obj(0)._SyncObj__otherNodes) == len(members) - 1
    else:
        g.propose(0)
        g.replicate(0, [1, 2])
        assert len(g.answers.acked) == 1
        assert not unpickled


def test_f12_an_exception_while_applying_is_no_endless_retry(make: Make) -> None:
    """pso-F12: a state machine that raises stops the process."""
    g = make(nodes=1)
    g.elect(0)
    g.replicate(0, [])
    g.enqueue(0, -1)  # the state machine of these scripts raises on negative commands
    raised = 0
    for _ in range(5):
        try:
            g.tick(0, 0.11)
        except Exception:  # noqa: BLE001  any exception counts here
            raised += 1
    assert raised >= 1
    if g.stock:
        assert raised == 4, "it raises in every tick"
        assert not g.answers.refused
    else:
        assert g.stopped(0), "fail-stop: nothing runs after an invariant broke"
