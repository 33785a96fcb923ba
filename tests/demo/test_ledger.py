"""The ledger's two rules: who may claim, who may write."""

from collections import Counter
from contextlib import closing

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from musterd.demo.ledger import CLAIM, WRITE, Ledger, Owner, Row

A, B = "worker-a", "worker-b"


@pytest.fixture
def ledger(tmp_path):
    """Two partitions, nothing counted."""
    with closing(Ledger.create(tmp_path / "results.sqlite", 2)) as opened:
        yield opened


def test_a_claim_returns_what_the_last_owner_wrote(ledger):
    """Offset and counts, together."""
    assert ledger.claim(0, Owner(1, A)) == Row(0, Counter())
    assert ledger.write(0, Owner(1, A), expected=0, offset=5, counts={"x": 3, "ü": 1})
    assert ledger.claim(0, Owner(2, B)) == Row(5, Counter({"x": 3, "ü": 1}))
    assert ledger.offsets() == {0: 5, 1: 0}
    assert ledger.totals() == Counter({"x": 3, "ü": 1})


def test_an_older_token_cannot_claim(ledger):
    """Nor can another member with the same one; the owner itself can again."""
    assert ledger.claim(0, Owner(2, A))
    assert ledger.claim(0, Owner(1, B)) is None
    assert ledger.claim(0, Owner(2, B)) is None
    assert ledger.claim(0, Owner(2, A))
    assert ledger.owners()[0] == Owner(2, A)


def test_a_zombie_cannot_write(ledger):
    """Its token is in no row any more, however right its offset is."""
    zombie = Owner(1, A)
    ledger.claim(0, zombie)
    ledger.claim(0, Owner(2, B))
    assert not ledger.write(0, zombie, expected=0, offset=1, counts={"x": 1})
    assert ledger.write(0, Owner(2, B), expected=0, offset=1, counts={"x": 1})


def test_a_member_that_lost_a_partition_cannot_write_with_the_token_of_another_one(ledger):
    """It owns partition 1 in the newer generation; partition 0 went to somebody else."""
    for partition in (0, 1):
        ledger.claim(partition, Owner(1, A))
    ledger.claim(1, Owner(2, A))
    assert not ledger.write(0, Owner(2, A), expected=0, offset=1, counts={"x": 1})
    ledger.claim(0, Owner(2, B))
    assert not ledger.write(0, Owner(2, A), expected=0, offset=1, counts={"x": 1})


def test_a_write_from_another_offset_than_the_rows_is_refused(ledger):
    """So that no line is skipped or counted twice by the owner itself."""
    owner = Owner(1, A)
    ledger.claim(0, owner)
    assert ledger.write(0, owner, expected=0, offset=4, counts={"x": 1})
    assert not ledger.write(0, owner, expected=0, offset=4, counts={"x": 2})
    assert not ledger.write(0, owner, expected=5, offset=9, counts={"x": 2})
    assert ledger.offsets()[0] == 4


def test_the_journal_has_what_was_granted_and_what_was_refused(ledger):
    """With the owner before, and the lines that a write added."""
    ledger.claim(0, Owner(1, A))
    ledger.write(0, Owner(1, A), expected=0, offset=4, counts={})
    ledger.claim(0, Owner(2, B))
    ledger.write(0, Owner(1, A), expected=4, offset=8, counts={})
    notes = ledger.notes()
    assert [(n.kind, n.granted, n.lines, n.member, n.former_member) for n in notes] == [
        (CLAIM, True, 0, A, ""),
        (WRITE, True, 4, A, A),
        (CLAIM, True, 0, B, A),
        (WRITE, False, 0, A, B),
    ]
    assert [n.offset for n in notes] == [0, 4, 4, 8]
    assert sorted(n.at_ns for n in notes) == [n.at_ns for n in notes]


def test_two_connections_see_each_other_and_an_unknown_partition_is_an_error(ledger, tmp_path):
    """As two workers would."""
    with closing(Ledger(tmp_path / "results.sqlite")) as other:
        other.claim(1, Owner(3, B))
    assert ledger.claim(1, Owner(2, A)) is None
    with pytest.raises(KeyError, match="no partition 7"):
        ledger.claim(7, Owner(1, A))


LINES = 40
TOKENS = [f"t{number % 7}" for number in range(LINES)]


class Owners(RuleBasedStateMachine):
    """Members with assignments of rising tokens count one partition; some do not notice the end."""

    def __init__(self):
        super().__init__()
        self.ledger = Ledger.create(":memory:", 1)
        self.newest = 0
        self.held = {}  # owner -> (offset, counts) as it believes
        self.owner = None

    def teardown(self):
        """Close the database."""
        self.ledger.close()

    @rule(member=st.sampled_from("abc"))
    def form_generation(self, member):
        """A new generation gives the partition to a member."""
        self.newest += 1
        self.entitled = Owner(self.newest, member)

    @rule(member=st.sampled_from("abc"), back=st.integers(0, 3))
    def claim(self, member, back):
        """By the entitled member, or by one with an older token, late."""
        token = self.newest - back
        if token < 1 or (back == 0 and self.entitled.member != member):
            return
        owner = Owner(token, member)
        row = self.ledger.claim(0, owner)
        allowed = self.owner is None or token > self.owner.token or owner == self.owner
        assert (row is not None) == allowed
        if row is not None:
            self.owner = owner
            self.held[owner] = row.offset, row.counts

    @rule(data=st.data(), size=st.integers(1, 5))
    def write(self, data, size):
        """By anyone who ever claimed, from where it believes to be."""
        if not self.held:
            return
        owner = data.draw(st.sampled_from(sorted(self.held)))
        offset, counts = self.held[owner]
        end = min(offset + size, LINES)
        counts = counts + Counter(TOKENS[offset:end])
        granted = self.ledger.write(0, owner, expected=offset, offset=end, counts=counts)
        assert not granted or owner == self.owner
        if granted:
            self.held[owner] = end, counts

    @rule()
    def crash(self):
        """Everybody forgets what they believed; what is written stays."""
        self.held.clear()

    @invariant()
    def each_line_counts_once(self):
        """The counts are exactly those of the lines before the offset."""
        (offset,) = self.ledger.offsets().values()
        assert self.ledger.totals() == Counter(TOKENS[:offset])


TestOwners = Owners.TestCase
TestOwners.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
