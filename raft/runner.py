"""The event loop that gives the driver its turns, and rests between them while calls come in.

A turn costs the same whether it carries one command or fifty, and grpc.aio takes several passes of
the loop to hand over one call. A turn in every pass would leave the calls waiting inside the
library, and each turn with one command. So under load the loop belongs to the calls for a few
milliseconds after each turn (docs/adr/0008). What elects a leader does not wait for that.

With few calls under way it is the other way round: what a peer or a client's stream brings is
handed over by `deliver`, and its turn follows in the same pass of the loop. What the disk says can
wait for a pass: mostly a peer's answer is needed, too.
"""

import asyncio
from collections.abc import Callable

from musterd.raft.driver import Driver


class LoopRunner:
    """Gives a driver its turns on an asyncio loop: one for whatever arrived, and a timer."""

    def __init__(
        self,
        driver: Driver,
        fatal: Callable[[BaseException], None],
        rest_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`rest_s`: how many seconds the loop shall have for other work after a turn.

        `fatal` is told what a turn, the timer or an observer raised. After that the timer does not
        run any more, so the process has to end.
        """
        self._driver = driver
        self._fatal = fatal
        self._rest_s = rest_s
        self._loop = asyncio.get_running_loop()
        self._turn_handle: asyncio.Handle | None = None
        self._turn_waits = False
        self._in_turn = self._delivers = self._wanted_again = False
        self._rest_until = 0.0
        self._timer_handle: asyncio.Handle | None = None
        self._timer_due = 0.0
        self.lag_observers: list[Callable[[float], None]] = []
        """Called with how many seconds late each timer came: the loop's lag."""
        self.turn_observers: list[Callable[[float], None]] = []
        """Called with how many seconds each turn took."""

    def start(self) -> None:
        """From now on the driver runs."""
        self._driver.on_wake(self.wake)
        self._timer_due = self._loop.time()
        self._timer_handle = self._loop.call_soon(self._timer)

    def wake(self) -> None:
        """A turn soon, after what has arrived by then; at once where the driver is in a hurry."""
        if self._in_turn or self._delivers:
            self._wanted_again = True
            return
        if self._turn_handle is not None:
            if not self._turn_waits or not self._driver.urgent:
                return
            self._turn_handle.cancel()
        rest_s = 0.0 if self._driver.urgent else self._rest_until - self._loop.time()
        self._turn_waits = rest_s > 0
        if self._turn_waits:
            self._turn_handle = self._loop.call_later(rest_s, self._turn)
        else:
            self._turn_handle = self._loop.call_soon(self._turn)

    def deliver(self, arrived: Callable[[], None]) -> None:
        """Call `arrived`, which gives the driver what a pass of the loop brought it.

        The turn that it asks for follows at once, unless one is on its way, or there are so many
        calls that the loop rests between turns. A pass for the turn alone costs some 12 us.
        """
        self._delivers = True
        try:
            arrived()
        finally:
            self._delivers = False
            if self._wanted_again:
                self._wanted_again = False
                self._give_turn()

    def _give_turn(self) -> None:
        rests = self._rest_s() > 0 or self._rest_until > self._loop.time()
        if rests or self._turn_handle is not None:
            self.wake()
        else:
            self._turn()

    def _turn(self) -> None:
        self._turn_handle = None
        self._in_turn, self._wanted_again = True, False
        started = self._loop.time()
        try:
            self._driver.turn()
        except BaseException as error:  # noqa: BLE001 - asyncio would only log it
            self._fatal(error)
            return
        finally:
            self._in_turn = False
        ended = self._loop.time()
        self._rest_until = ended + self._rest_s()
        if self._wanted_again:
            self.wake()
        try:
            for observe in self.turn_observers:
                observe(ended - started)
        except BaseException as error:  # noqa: BLE001 - as above
            self._fatal(error)

    def _timer(self) -> None:
        lag = self._loop.time() - self._timer_due
        try:
            for observe in self.lag_observers:
                observe(max(0.0, lag))
            wait = self._driver.timer()
        except BaseException as error:  # noqa: BLE001 - asyncio would only log it
            self._fatal(error)
            return
        self._timer_due = self._loop.time() + wait
        self._timer_handle = self._loop.call_at(self._timer_due, self._timer)

    def stop(self) -> None:
        """No more turns: what the driver still has to keep is in the store's pending batch."""
        self._driver.on_wake(_nothing)
        self._wanted_again = False
        self._driver.stop()
        for handle in (self._turn_handle, self._timer_handle):
            if handle is not None:
                handle.cancel()


def _nothing() -> None:
    """The runner has stopped."""
