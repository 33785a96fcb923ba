"""The loop's rest between two turns, and what does not wait for it."""

import asyncio

import pytest

from musterd.raft.runner import LoopRunner

HOUR_S = 3600.0


class Driver:
    """Counts its turns."""

    def __init__(self):
        self.turns = 0
        self.urgent = False
        self.runner = None

    def on_wake(self, wake):
        self.wake = wake

    def turn(self):
        self.urgent = False
        self.turns += 1

    def timer(self):
        return HOUR_S

    def stop(self):
        """Nothing is kept."""


@pytest.fixture
def driver():
    """A driver that only counts."""
    return Driver()


async def _passes(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


def _run(driver, scenario, rest_s):
    async def main():
        runner = driver.runner = LoopRunner(driver, pytest.fail, lambda: rest_s)
        runner.start()
        try:
            await scenario()
        finally:
            runner.stop()

    asyncio.run(main())


def test_without_load_every_wish_is_a_turn_in_the_next_pass(driver):
    """No rest: the turn comes at once, and wishes of one pass share it."""

    async def scenario():
        for turns in (1, 2, 3):
            driver.wake()
            driver.wake()
            await _passes(2)
            assert driver.turns == turns

    _run(driver, scenario, 0.0)


def test_a_turn_waits_for_the_rest_after_the_one_before(driver):
    """However many passes the loop makes meanwhile."""

    async def scenario():
        driver.wake()
        await _passes()
        assert driver.turns == 1
        driver.wake()
        await _passes()
        assert driver.turns == 1

    _run(driver, scenario, HOUR_S)


def test_a_turn_that_left_work_behind_rests_too(driver):
    """What it asks for while it runs comes after the rest, not at once."""

    async def scenario():
        plain = driver.turn

        def turn():
            plain()
            driver.wake()

        driver.turn = turn
        driver.wake()
        await _passes()
        assert driver.turns == 1

    _run(driver, scenario, HOUR_S)


def test_a_rest_ends(driver):
    """The turn that waited comes without being asked for again."""

    async def scenario():
        driver.wake()
        await _passes()
        driver.wake()
        async with asyncio.timeout(20):
            while driver.turns < 2:
                await asyncio.sleep(0.001)

    _run(driver, scenario, 0.01)


@pytest.mark.parametrize("asked_before", [False, True])
def test_an_election_does_not_wait(driver, asked_before):
    """Neither where the turn was not asked for yet, nor where it waits already."""

    async def scenario():
        driver.wake()
        await _passes()
        if asked_before:
            driver.wake()
        driver.urgent = True
        driver.wake()
        await _passes()
        assert driver.turns == 2

    _run(driver, scenario, HOUR_S)


def _twice(driver):
    driver.wake()
    driver.wake()
    assert driver.turns == 0, "a turn began before all was taken in"


def test_what_is_delivered_has_its_turn_in_the_same_pass(driver):
    """One turn, once all of it is taken in, and none in the next pass."""

    async def scenario():
        await _passes()
        driver.runner.deliver(lambda: _twice(driver))
        assert driver.turns == 1
        await _passes()
        assert driver.turns == 1

    _run(driver, scenario, 0.0)


def test_what_is_delivered_and_asks_for_no_turn_has_none(driver):
    """Most heartbeats do not."""

    async def scenario():
        driver.runner.deliver(lambda: None)
        await _passes()
        assert driver.turns == 0

    _run(driver, scenario, 0.0)


def test_what_is_delivered_shares_the_turn_that_is_on_its_way(driver):
    """Others asked for it in the same pass."""

    async def scenario():
        driver.wake()
        driver.runner.deliver(lambda: _twice(driver))
        assert driver.turns == 0
        await _passes()
        assert driver.turns == 1

    _run(driver, scenario, 0.0)


def test_with_many_calls_what_is_delivered_waits_for_what_else_a_pass_brings(driver):
    """The first turn comes in the next pass, the second after the rest."""

    async def scenario():
        driver.runner.deliver(lambda: _twice(driver))
        assert driver.turns == 0
        await _passes()
        assert driver.turns == 1
        driver.runner.deliver(driver.wake)
        await _passes()
        assert driver.turns == 1

    _run(driver, scenario, HOUR_S)


def test_what_is_delivered_has_its_turn_although_it_ends_in_an_error(driver):
    """A frame whose last request breaks a rule has commits before it."""

    async def scenario():
        def arrived():
            driver.wake()
            raise LookupError

        with pytest.raises(LookupError):
            driver.runner.deliver(arrived)
        assert driver.turns == 1

    _run(driver, scenario, 0.0)


def test_no_turn_follows_what_stops_the_runner(driver):
    """What arrived last may have ended the node."""

    async def scenario():
        def arrived():
            driver.wake()
            driver.runner.stop()

        driver.runner.deliver(arrived)
        await _passes()
        assert driver.turns == 0

    _run(driver, scenario, 0.0)


@pytest.mark.parametrize("observers", ["lag_observers", "turn_observers"])
def test_what_an_observer_raises_is_fatal(driver, observers):
    """A timer that stops in silence leaves a process that takes commits and ends no session."""
    told = []

    def observe(_seconds):
        raise OSError(116, "Stale file handle")

    async def main():
        runner = LoopRunner(driver, told.append)
        getattr(runner, observers).append(observe)
        runner.start()
        driver.wake()
        await _passes()
        runner.stop()

    asyncio.run(main())
    assert [type(error) for error in told] == [OSError]
