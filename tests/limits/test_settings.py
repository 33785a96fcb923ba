"""Limits of what an operator sets, and of how many offsets a group may keep."""

import pytest

from musterd.coordinator.machine.commands import AlterGroupConfig, ConfigSetting, PartitionCommit
from musterd.coordinator.machine.decide.config import (
    INITIAL_DELAY_MS,
    MAX_AWAY_MS,
    OFFSETS_RETENTION_MS,
)
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.modern.colocation import COLOCATE
from musterd.coordinator.machine.modern.weights import WEIGHTS
from musterd.coordinator.machine.shard_state import recount
from musterd.coordinator.machine.state import Offset
from tests.limits.rows import limit
from tests.limits.test_machine import Shard, commit


@limit("group_max_offsets")
def test_a_group_keeps_so_many_offsets(step):
    """One partition more is refused by itself; those that are there go on."""
    shard = Shard()
    shard.apply(commit(PartitionCommit("t", 0, 1, "", None)))
    offsets = shard.state.groups["g"].offsets
    for number in range(1, LIMITS.group_max_offsets - 2):
        offsets["t", number] = Offset(1, "", None, "", -1, 0, 0)
    shard.state.digest = recount(shard.state)
    wanted = [PartitionCommit("new", n, 1, "", None) for n in range(2 + step)]
    (result,) = shard.apply(commit(*wanted, PartitionCommit("t", 0, 2, "", None)))
    errors = [one.error for one in result.reply.partitions]
    refused = [Error.INVALID_COMMIT_OFFSET_SIZE] if step > 0 else []
    assert errors == [Error.NONE] * (2 + min(step, 0)) + refused + [Error.NONE]
    assert len(offsets) == LIMITS.group_max_offsets + min(step, 0)
    assert offsets["t", 0].offset == 2
    assert shard.state.digest == recount(shard.state)


@limit("colocate_max_topics")
def test_topics_that_are_co_located(step):
    """One more in all the sets, and nothing of it is taken."""
    shard, count = Shard(), LIMITS.colocate_max_topics + step
    names = [f"t{number:03}" for number in range(count)]
    sets = [names[0:3], *(names[at : at + 2] for at in range(3, count - 1, 2))]
    sets[-1] += names[sum(map(len, sets)) :]
    text = ";".join(",".join(names) for names in sets)
    shard.apply()  # time begins, which is state
    shard.hold_against(altering(text), step, Error.INVALID_CONFIG)


@limit("colocate_max_bytes")
def test_bytes_of_what_is_co_located(step):
    """One byte more, and nothing of it is taken."""
    shard, size = Shard(), LIMITS.colocate_max_bytes + step
    names = [f"{number:03}" + "x" * 96 for number in range(size // 100)]
    text = ",".join(names)
    text += "y" * (size - len(text))
    shard.apply()
    shard.hold_against(altering(text), step, Error.INVALID_CONFIG)


@limit("weights_max_entries")
def test_entries_of_what_partitions_weigh(step):
    """One more, and nothing of it is taken."""
    shard, count = Shard(), LIMITS.weights_max_entries + step
    text = ";".join(f"t[{number}]={2 + number % 2}" for number in range(count))
    shard.apply()
    shard.hold_against(altering(text, WEIGHTS), step, Error.INVALID_CONFIG)


@limit("weights_max_bytes")
def test_bytes_of_what_partitions_weigh(step):
    """One byte more, and nothing of it is taken."""
    shard, size = Shard(), LIMITS.weights_max_bytes + step
    text = ";".join(f"{number:03}{'x' * 94}=2" for number in range(size // 100 - 1))
    text += f";{'y' * (size - len(text) - 3)}=2"
    shard.apply()
    shard.hold_against(altering(text, WEIGHTS), step, Error.INVALID_CONFIG)


def altering(text, name=COLOCATE):
    """The command that sets a setting that is a text."""
    return AlterGroupConfig("g", (ConfigSetting(name, text),), ())


@limit("alter_config_max_settings")
def test_settings_of_one_call(step):
    """What is not named is not looked at: no call is that long but by mistake."""
    shard = Shard()
    names = tuple(f"n{number}" for number in range(LIMITS.alter_config_max_settings + step))
    (result,) = shard.apply(AlterGroupConfig("g", (), names))
    # Under and at the maximum each name is looked at, and there is no such setting.
    assert result.reply.error is (Error.INVALID_REQUEST if step > 0 else Error.INVALID_CONFIG)
    assert (result.events, result.writes) == ((), ())


@limit("away_longest_ms", "initial_delay_max_ms", "offset_retention_max_ms")
@pytest.mark.parametrize(
    ("name", "most"),
    [
        (INITIAL_DELAY_MS, LIMITS.initial_delay_max_ms),
        (MAX_AWAY_MS, LIMITS.away_longest_ms),
        (OFFSETS_RETENTION_MS, LIMITS.offset_retention_max_ms),
    ],
)
def test_the_longest_times_of_a_groups_own(name, most, step):
    """They are kept as they are, or refused."""
    shard = Shard()
    shard.apply()  # time begins, which is state
    shard.hold_against(
        AlterGroupConfig("g", (ConfigSetting(name, str(most + step)),), ()),
        step,
        Error.INVALID_CONFIG,
    )
    kept = shard.state.groups["g"].config if step <= 0 else {}
    assert kept == ({name: most + step} if step <= 0 else {})
