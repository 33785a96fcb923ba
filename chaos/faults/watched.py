"""Faults that look, before they are healed, for an effect that is not in their own words."""

import time
from collections.abc import Callable
from typing import ParamSpec

from musterd.chaos.faults.contract import Fault
from musterd.coordinator.node.loopback import ClusterError

LOOK_S_MAX = 5.0
"""A node's page may be late, a process just be gone."""
POLL_S = 0.1
_P = ParamSpec("_P")

Sight = tuple[bool, str]
"""Whether something of the fault was seen, and what, for people."""


class Watched(Fault):
    """What is seen of it is asked of the kernel, of the network or of a node, never of itself.

    Where nobody looked, nothing was seen: an `inject` that does nothing is unreal.
    """

    _effect: str = ""
    _unreal: str = "nobody looked"

    def effect(self) -> str:
        """What was seen."""
        return self._effect

    def unreal(self) -> str:
        """What was seen, where that shows no effect."""
        return self._unreal

    def _saw(self, sight: Sight) -> None:
        real, what = sight
        self._effect, self._unreal = (what, "") if real else ("", what)

    def _watch(self, look: Callable[_P, Sight], *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Look; a look that fails is tried again, then saw nothing: healed it is all the same."""
        deadline = time.monotonic() + LOOK_S_MAX
        while True:
            try:
                self._saw(look(*args, **kwargs))
            except (OSError, ClusterError) as error:
                self._saw((False, f"nothing can be seen: {error}"))
                if time.monotonic() < deadline:
                    time.sleep(POLL_S)
                    continue
            return
