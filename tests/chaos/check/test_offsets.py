"""inv-I2: what is linearizable passes, what is not is told, and a slow check agrees."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from musterd.chaos.check import offsets, search
from musterd.chaos.check.register import registers
from musterd.chaos.history import SUPERSEDED, Outcome
from tests.chaos.check import brute
from tests.chaos.check.generated import generated
from tests.chaos.check.made import KEY, OTHER, commit, delete, history, only, op, read


def test_reads_see_what_was_committed_before_them():
    """The plain case: it passes, and says how much it looked at."""
    verdict = offsets.check(
        history(read(-1, 0, 1), commit(5, 2, 3), read(5, 4, 5), commit(6, 4, 6), read(6, 5, 7))
    )
    assert verdict.passed
    assert verdict.looked_at == 5


def test_nothing_read_is_nothing_shown():
    """A history of writes alone fits every order."""
    verdict = offsets.check(history(commit(5, 0, 1), commit(6, 2, 3)))
    assert verdict.looked_at == 0
    assert not verdict.passed


def test_a_stale_read_is_told():
    """5 was replaced before the read began."""
    verdict = offsets.check(history(commit(5, 0, 1), commit(6, 2, 3), read(5, 4, 5, client="r")))
    assert only(verdict) == (
        "g/t/0: no order of all that ended before explains the "
        "read 5 by r (+4.000000 s .. +5.000000 s)"
    )


def test_reads_that_go_back_are_told():
    """Two reads during one commit: the new value, then the old one."""
    verdict = offsets.check(history(commit(5, 0, 1), commit(6, 2, 9), read(6, 3, 4), read(5, 5, 6)))
    assert "explains the read 5 by w (+5.000000 s .. +6.000000 s)" in only(verdict)


def test_a_value_from_nowhere_is_told():
    """Nobody wrote 7."""
    verdict = offsets.check(history(commit(5, 0, 1), read(7, 2, 3)))
    assert only(verdict).startswith("g/t/0: a value that nobody wrote: read 7 by w")


def test_the_effect_of_a_refused_commit_is_told():
    """Refused means that it never takes effect."""
    refused = commit(5, 0, 1, outcome=Outcome.FAIL, error="ILLEGAL_GENERATION")
    verdict = offsets.check(history(refused, read(5, 2, 3)))
    assert "although it was refused: commit 5 by w" in only(verdict)
    assert "refused (ILLEGAL_GENERATION)" in only(verdict)


def test_a_value_read_before_it_was_written_is_told():
    """The future is not known."""
    verdict = offsets.check(history(read(5, 0, 1), commit(5, 2, 3)))
    assert "explains the read 5 by w (+0.000000 s .. +1.000000 s)" in only(verdict)


def test_an_unknown_commit_may_happen_late_or_never():
    """Both are explained."""
    late = history(commit(5, 0, 1), commit(6, 2, None), read(5, 3, 4), read(6, 8, 9))
    never = history(commit(5, 0, 1), commit(6, 2, None), read(5, 3, 4), read(5, 8, 9))
    assert offsets.check(late).passed
    assert offsets.check(never).passed


def test_an_unknown_commit_happens_once():
    """Seen, replaced, and seen again is told."""
    verdict = offsets.check(
        history(commit(5, 0, None), read(5, 1, 2), commit(6, 3, 4), read(6, 5, 6), read(5, 7, 8))
    )
    assert "explains the read 5 by w (+7.000000 s .. +8.000000 s)" in only(verdict)


def test_a_superseded_commit_has_no_effect_after_its_answer():
    """Its value may be read while it lasts; turning up later is told."""
    superseded = commit(5, 0, 4, outcome=Outcome.UNKNOWN, error=SUPERSEDED)
    before = history(superseded, read(5, 1, 2), commit(6, 3, 4), read(6, 5, 6))
    after = history(superseded, commit(6, 5, 6), read(5, 7, 8))
    assert offsets.check(before).passed
    assert "explains the read 5" in only(offsets.check(after))


def test_a_delete_explains_that_nothing_is_there():
    """And the offset from before may not come back."""
    gone = history(commit(5, 0, 1), delete(2, 3), read(-1, 4, 5))
    back = history(commit(5, 0, 1), delete(2, 3), read(-1, 4, 5), read(5, 6, 7))
    assert offsets.check(gone).passed
    assert only(offsets.check(back)) == (
        "g/t/0: no order of all that ended before explains the "
        "read 5 by w (+6.000000 s .. +7.000000 s)"
    )


def test_a_reset_to_an_offset_that_was_committed_is_a_write_of_its_own():
    """The same value twice: after the reset it is there again, without one it is not."""
    operations = [commit(5, 0, 1), commit(6, 2, 3), read(6, 4, 5)]
    assert offsets.check(history(*operations, op("reset", 5, 6, 7), read(5, 8, 9))).passed
    assert not offsets.check(history(*operations, read(5, 8, 9))).passed


@pytest.mark.parametrize("open_first", [True, False])
def test_which_of_two_equal_writes_was_read_is_left_open_until_it_matters(open_first):
    """One may come late and the other not: only with the other one read first there is an order."""
    late = op("reset", 1, 0, None)
    early = op("reset", 1, 0, 4, outcome=Outcome.UNKNOWN, error=SUPERSEDED)
    writes = [late, early] if open_first else [early, late]
    rest = [read(1, 1, 2), commit(2, 5, 6), read(2, 7, 8), read(1, 9, 10)]
    assert offsets.check(history(*writes, *rest)).passed
    assert not offsets.check(history(*writes, *rest, commit(3, 11, 12), read(1, 13, 14))).passed


def test_one_key_does_not_explain_another():
    """Each is a register of its own, and only the bad one is told."""
    verdict = offsets.check(history(commit(5, 0, 1, key=OTHER), read(5, 2, 3, key=KEY)))
    assert only(verdict).startswith("g/t/0: a value that nobody wrote")


def test_a_key_with_too_many_states_is_undecided_and_not_passed(monkeypatch):
    """The bound of the search is a finding."""
    monkeypatch.setattr(search, "STATES_MAX", 3)
    verdict = offsets.check(
        history(
            *(commit(value, 0, 9) for value in range(5)),
            delete(0, 9),
            read(-1, 1, 2),
            read(3, 3, 4),
        )
    )
    assert "undecided" in only(verdict)


def test_an_answer_without_a_value_is_an_error():
    """A history that contradicts itself is not judged."""
    with pytest.raises(ValueError, match="has no value"):
        offsets.check(history(read(None, 0, 1)))


# -- against the slow check


@st.composite
def operations(draw, values=None):
    """Up to eight operations in a short time; one writer per value unless `values` is given."""
    made = []
    for number in range(draw(st.integers(1, 8))):
        began = draw(st.integers(0, 12))
        ended = began + draw(st.integers(0, 6))
        if draw(st.booleans()):
            value = number if values is None else draw(st.sampled_from(values))
            how = draw(st.sampled_from(["ok", "ok", "unknown", "superseded", "fail"]))
            made.append(
                commit(
                    value,
                    began,
                    None if how == "unknown" else ended,
                    outcome=Outcome.OK
                    if how == "ok"
                    else Outcome.FAIL
                    if how == "fail"
                    else Outcome.UNKNOWN,
                    error=SUPERSEDED if how == "superseded" else "",
                )
            )
        else:
            made.append(read(draw(st.sampled_from(values or [-1, *range(8)])), began, ended))
    return made


@st.composite
def served(draw, values=None):
    """What a real register answers: each effect at one moment of its operation."""
    moments, made = [], []
    for number in range(draw(st.integers(2, 8))):
        at = draw(st.integers(2, 14)) * 10 + number
        began, ended = at - draw(st.integers(0, 25)), at + draw(st.integers(0, 25))
        moments.append((at, began, ended, number, draw(st.sampled_from("wwrrru"))))
    value = -1
    for _, began, ended, number, what in sorted(moments):
        if what == "r":
            made.append(read(value, began, ended))
            continue
        written = number if values is None else draw(st.sampled_from(values))
        made.append(commit(written, began, None if what == "u" else ended))
        if what == "w" or draw(st.booleans()):
            value = written
    return made


UNIQUE = st.one_of(operations(), served())
SHARED = st.one_of(operations([-1, 1, 2]), served([-1, 1, 2]))


def register_of(made):
    """The one register."""
    (register,) = registers(history(*made)).values()
    return register


@settings(max_examples=300, deadline=None)
@given(UNIQUE)
def test_the_search_says_what_trying_every_order_says(made):
    """Values with one writer each."""
    register = register_of(made)
    assert (search.first_unexplained(register) is None) is brute.is_linearizable(register)


@settings(max_examples=300, deadline=None)
@given(SHARED)
def test_the_search_says_what_trying_every_order_says_of_values_with_several_writers(made):
    """Deletes and resets write what was there before."""
    register = register_of(made)
    assert (search.first_unexplained(register) is None) is brute.is_linearizable(register)


@settings(max_examples=100, deadline=None)
@given(served())
def test_what_a_register_answers_is_linearizable(made):
    """No false alarm: effects at one moment each fit."""
    assert brute.is_linearizable(register_of(made))
    assert offsets.check(history(*made)).violations == ()


@pytest.mark.parametrize("shared", [False, True])
def test_verdicts_on_thousands_of_registers_are_those_of_trying_every_order(shared):
    """Deletes, resets, refused, superseded and unknown ones; many of either verdict."""
    said = []
    for seed in range(2000):
        made = generated(Random(seed), 7, shared=shared, bent=seed % 3 > 0)
        truth = brute.is_linearizable(register_of(made))
        assert brute.is_explained(register_of(made)) is truth, seed
        assert truth or seed % 3, seed
        said.append(truth)
    assert 200 < said.count(False) < 1800
