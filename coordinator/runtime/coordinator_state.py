"""May this replica answer for its shard, and what may it become next?"""

from collections.abc import Mapping
from enum import Enum
from typing import Final


class CoordinatorState(Enum):
    """The state of a replica, as the callers of its shard see it.

    ```
                 elected             its no-op is applied           quorum lost
      FOLLOWER ----------> LOADING ------------------------> SERVING ---------> CUT_OFF
          ^                   |       (or CUT_OFF)              ^  <---------      |
          |                   |                               |   heard again     |
          +-------------------+------- deposed ---------------+-------------------+

      any of these  -- a majority contradicts its state -->  QUARANTINED
      QUARANTINED   -- a leader's state has come -->          FOLLOWER, LOADING
      any           -- the node stops -->                     CLOSED, for good
    ```

    What is not drawn cannot happen: nobody serves who has not loaded, and who was contradicted
    while it led serves only after it was deposed and elected again.
    """

    FOLLOWER = "follower"
    LOADING = "loading"
    """It leads, and has not applied its own no-op yet: calls are held."""
    SERVING = "serving"
    CUT_OFF = "cut off"
    """It leads, and hears no quorum: another may lead by now."""
    QUARANTINED = "quarantined"
    CLOSED = "closed"

    @property
    def elsewhere(self) -> bool:
        """Whether calls are turned away: NOT_COORDINATOR."""
        return self not in (CoordinatorState.SERVING, CoordinatorState.LOADING)

    def may_become(self, other: "CoordinatorState") -> bool:
        """Whether the one may follow the other."""
        return other in _NEXT[self]


def _next() -> Mapping[CoordinatorState, frozenset[CoordinatorState]]:
    follower, loading, serving, cut_off, quarantined, closed = CoordinatorState
    always = {quarantined, closed}
    return {
        follower: frozenset({loading} | always),
        loading: frozenset({follower, serving, cut_off} | always),
        serving: frozenset({follower, cut_off} | always),
        cut_off: frozenset({follower, serving} | always),
        quarantined: frozenset({follower, loading, closed}),
        closed: frozenset(),
    }


_NEXT: Final = _next()
