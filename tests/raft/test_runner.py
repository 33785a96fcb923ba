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
        runner = LoopRunner(driver, pytest.fail, lambda: rest_s)
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
