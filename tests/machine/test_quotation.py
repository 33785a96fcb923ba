"""Text in quotation marks is Python 3.11's, whichever Python runs the machine."""

import itertools
import sys
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from musterd.coordinator.machine import quotation
from musterd.coordinator.machine.quotation import quoted
from musterd.coordinator.machine.records.digest import digest_bytes
from tests import machine_lacks
from tests.machine.later import LATER, LaterText, LaterWorld
from tests.machine.world import World

UNICODE = "14.0.0"
"""What Python 3.11 knows."""
of_this_python = pytest.mark.usefixtures("python_311")


@pytest.fixture(scope="module")
def python_311():
    """The interpreter has the characters of Python 3.11."""
    if unicodedata.unidata_version != UNICODE:
        machine_lacks.refuse("this Python has other characters than 3.11")


def base_36(number: int) -> str:
    """As the table has it."""
    number, digit = divmod(number, 36)
    return (base_36(number) if number else "") + "0123456789abcdefghijklmnopqrstuvwxyz"[digit]


@of_this_python
def test_the_table_is_what_python_311_can_print():
    """The runs of all code points; this is how the table was made."""
    can = (chr(code).isprintable() for code in range(sys.maxunicode + 1))
    runs = [base_36(len(list(run))) for _, run in itertools.groupby(can)]
    assert quotation._RUNS.split() == runs


@of_this_python
def test_each_character_is_quoted_as_python_311_does():
    """All 1,114,112 of them, alone."""
    every = map(chr, range(sys.maxunicode + 1))
    assert [one for one in every if quoted(one) != repr(one)] == []


@of_this_python
@given(st.text(st.characters() | st.sampled_from("'\"\\\n\t\r\x7f\xad\ud800 ")))
@example("it's")
@example('"it"')
@example('it\'s "it"')
@example("\\'")
def test_text_is_quoted_as_python_311_does(text):
    """Which mark is chosen depends on the whole text."""
    assert quoted(text) == repr(text)


def test_an_ascii_text_is_quoted_without_a_look_at_each_character(monkeypatch):
    """A command may name a thousand topics of 249 bytes: by character they took 90 ms."""

    def unwanted(character):
        raise AssertionError(f"{character!r} was looked up")

    monkeypatch.setattr(quotation, "_shown", unwanted)
    every = "".join(map(chr, range(128)))
    for text in (every, every.replace("'", ""), every.replace('"', "")):
        assert quoted(text) == repr(text)


@pytest.mark.parametrize("character", LATER)
def test_a_character_that_later_pythons_can_print_stays_an_escape(character):
    """It does not ask the Python that runs it."""
    code = ord(character)
    escape = f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    assert quoted(f"a{character}") == f"'a{escape}'"


@pytest.mark.parametrize("character", LATER)
def test_the_later_python_is_another_one(character):
    """It prints what 3.11 escapes, in each way in which it can be asked."""
    text = LaterText(f"a{character}")
    assert text == f"a{character}"
    assert repr(text) == f"{text!r}" == f"'a{character}'"
    assert text.isprintable()
    assert [one.isprintable() for one in text] == [True, True]
    assert LaterText("it's\t").isprintable() is False
    assert repr(LaterText("it's\t")) == '"it\'s\\t"'


@pytest.mark.parametrize("world", [World, LaterWorld])
def test_a_topic_with_such_a_name_leaves_the_same_state_on_every_python(world):
    """The round's reason is replicated; the digest is the one that Python 3.11 found."""
    world = world(level=3)  # later ones make no such topic
    for line in (
        "topic \U0001fae8's 2",
        "join a topics=\U0001fae8's",
        "fire",
        "sync a-1 a-1:A",
        "grow \U0001fae8's 3",
        "changed \U0001fae8's",
    ):
        world.run(line)
    (*_, last) = world.state.groups["g"].rebalances.values()
    assert last.reason == 'topic "\\U0001fae8\'s" has 3 partitions'
    assert digest_bytes(world.state.digest).hex() == "4f196ba7f56244a90a562cd25d1eb598"
