"""AlterGroupConfig (gp-2.14, gp-4.4): a group's own bounds and defaults, kept with the group.

A closed list. A value lies within what the cluster allows; where the cluster's bounds were
tightened later, what was stored is cut to them (gp-2.14).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple

from musterd.coordinator.machine.commands import (
    AlterGroupConfig,
    ConfigSetting,
    ConsumerGroupHeartbeat,
)
from musterd.coordinator.machine.decide.decision import Decision, refuse, unavailable
from musterd.coordinator.machine.decide.level import LEVEL_OF
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import (
    ConfigValue,
    GroupConfigChanged,
    GroupEvent,
    Trigger,
)
from musterd.coordinator.machine.limits import Limits
from musterd.coordinator.machine.modern import colocation, weights
from musterd.coordinator.machine.modern.colocation import COLOCATE
from musterd.coordinator.machine.modern.conversion import MIGRATION_POLICY, POLICIES
from musterd.coordinator.machine.modern.departures import spec_changed
from musterd.coordinator.machine.modern.weights import WEIGHTS
from musterd.coordinator.machine.quotation import quoted
from musterd.coordinator.machine.replies import Configured
from musterd.coordinator.machine.state import Group, Phase

MIN_SESSION_TIMEOUT_MS: Final = "classic.min.session.timeout.ms"
MAX_SESSION_TIMEOUT_MS: Final = "classic.max.session.timeout.ms"
INITIAL_DELAY_MS: Final = "classic.initial.rebalance.delay.ms"
MAX_SIZE: Final = "classic.max.size"
MAX_AWAY_MS: Final = "consumer.max.away.ms"
OFFSETS_RETENTION_MS: Final = "offsets.retention.ms"
AWAY_MIN_MS: Final = 1_000
MODERN_LEVEL: Final = LEVEL_OF[ConsumerGroupHeartbeat]
"""The level of the cluster from which on there are settings of modern groups."""
_DIGITS: Final = frozenset("0123456789")


@dataclass(frozen=True, slots=True)
class Setting:
    """One name of the list: which limit it overrides, and between which it must lie."""

    name: str
    limit: str
    low: str | int
    """A limit by name, or a number."""
    high: str
    level: int = 1
    """The cluster's level from which on there is this setting."""

    def bounds(self, limits: Limits) -> tuple[int, int]:
        """The lowest and the highest value under the cluster's limits."""
        low = self.low if isinstance(self.low, int) else getattr(limits, self.low)
        return low, getattr(limits, self.high)


SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        setting.name: setting
        for setting in (
            Setting(INITIAL_DELAY_MS, "initial_delay_ms", 0, "initial_delay_max_ms"),
            Setting(
                MAX_SESSION_TIMEOUT_MS,
                "session_timeout_max_ms",
                "session_timeout_min_ms",
                "session_timeout_max_ms",
            ),
            Setting(MAX_SIZE, "group_max_members", 1, "group_max_members"),
            Setting(
                MIN_SESSION_TIMEOUT_MS,
                "session_timeout_min_ms",
                "session_timeout_min_ms",
                "session_timeout_max_ms",
            ),
            Setting(MAX_AWAY_MS, "away_max_ms", AWAY_MIN_MS, "away_longest_ms", level=MODERN_LEVEL),
            Setting(OFFSETS_RETENTION_MS, "offset_retention_ms", 0, "offset_retention_max_ms"),
        )
    }
)
"""Every setting that is a number, by name."""


class TextSetting(NamedTuple):
    """A setting that is a text of a form of its own.

    Args:
        what: what it is, for people.
        read: returns the one form of a text, "" where it says nothing, and what is wrong with it;
            "" where nothing is.
    """

    what: str
    read: Callable[[str, Limits], tuple[str, str]]


TEXTS: Final[Mapping[str, TextSetting]] = MappingProxyType(
    {
        COLOCATE: TextSetting("sets of topics, such as `a,b;c,d`", colocation.read),
        WEIGHTS: TextSetting(
            "weights of topics and partitions, such as `a=2;a[7]=5.5`", weights.read
        ),
    }
)
"""Every setting that is a text, by name. Plans are made from them. All are of modern groups."""

CHOICES: Final[Mapping[str, Sequence[str]]] = MappingProxyType({MIGRATION_POLICY: POLICIES})
"""Every setting that is one of some words, by name. Its number is stored; the default is the last.
All are of modern groups."""


def names_at(level: int) -> tuple[str, ...]:
    """Return the names of the settings that there are at this level of the cluster, in order."""
    texts = (*TEXTS, *CHOICES) if level >= MODERN_LEVEL else ()
    numbers = (name for name, setting in SETTINGS.items() if setting.level <= level)
    return tuple(sorted((*numbers, *texts)))


def own_limits(group: Group, limits: Limits) -> Limits:
    """The limits that count for this group."""
    own: dict[str, int] = {}
    for name, value in group.config.items():
        if name in CHOICES:
            continue
        low, high = SETTINGS[name].bounds(limits)
        own[SETTINGS[name].limit] = min(max(value, low), high)
    return replace(limits, **own)


def decide_config(group: Group | None, command: AlterGroupConfig, env: Envelope) -> Decision:
    """Take all of it or nothing; `env` has the cluster's limits. What is so already is no event."""
    if group is not None and group.phase is Phase.DEAD:
        return unavailable()
    known = names_at(env.level)
    before, texts_before = ({}, {}) if group is None else (group.config, group.texts)
    for name in command.removed:
        if name not in known:
            return _invalid(_unknown(name, known))
    after = {name: value for name, value in before.items() if name not in command.removed}
    written = {name: text for name, text in texts_before.items() if name not in command.removed}
    for name, value in command.settings:
        kept, wrong = _read(name, value, known, env.limits)
        if wrong:
            return _invalid(wrong)
        if isinstance(kept, str):
            written[name] = kept
        else:
            after[name] = kept
    low = after.get(MIN_SESSION_TIMEOUT_MS, env.limits.session_timeout_min_ms)
    high = after.get(MAX_SESSION_TIMEOUT_MS, env.limits.session_timeout_max_ms)
    if low > high:
        return _invalid(f"The least session timeout would be {low} ms and the longest {high} ms.")
    values = tuple(ConfigValue(name, value) for name, value in sorted(after.items()))
    texts = tuple(ConfigSetting(name, text) for name, text in sorted(written.items()) if text)
    if (after, dict(texts)) == (before, texts_before):
        return Decision((), Configured(values, changed=False, texts=texts))
    events: list[GroupEvent] = [GroupConfigChanged(command.group_id, values, texts)]
    if group is not None and group.modern is not None and dict(texts) != texts_before:
        reason = _difference(texts_before, dict(texts))
        trigger = Trigger.SETTINGS_CHANGED
        events.append(spec_changed(group, group.modern, env, trigger, "", reason))
    return Decision(tuple(events), Configured(values, texts=texts))


def _difference(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return what each text is now that was another one."""
    names = (name for name in TEXTS if after.get(name) != before.get(name))
    return " and ".join(f"{name} is {after.get(name, 'not set any more')}" for name in names)


def _read(name: str, value: str, known: Sequence[str], limits: Limits) -> tuple[int | str, str]:
    """Return a setting's value as it is kept, and what is wrong with it; "" where nothing is."""
    if name not in known:
        return 0, _unknown(name, known)
    if name in TEXTS:
        text, wrong = TEXTS[name].read(value, limits)
        return text, wrong and f"{name} is {TEXTS[name].what}. {wrong}"
    if name in CHOICES:
        words = CHOICES[name]
        if value in words:
            return words.index(value), ""
        return 0, f"{name} is one of {', '.join(words)}."
    setting = SETTINGS[name]
    low, high = setting.bounds(limits)
    if not (0 < len(value) <= len(str(high)) and _DIGITS.issuperset(value)):
        return 0, f"{name} is a whole number from {low} to {high}, not {quoted(value[:40])}."
    if not low <= int(value) <= high:
        return 0, f"{name} is {low} to {high}, not {int(value)}."
    return int(value), ""


def _unknown(name: str, known: Sequence[str]) -> str:
    return f"There is no setting {quoted(name[:80])}; there are {', '.join(known)}."


def _invalid(message: str) -> Decision:
    return refuse(Error.INVALID_CONFIG, message)
