"""How far rebalances moved more than they had to."""

from musterd.chaos.history import Generation, History, Key, Ownership
from musterd.chaos.run.ownership import fewest_moves, moves, reassigned_ms

MS = 1_000_000


def key(partition: int) -> Key:
    """Of the one group."""
    return Key("g", "t", partition)


def told(generation: int, member: str, *partitions: int) -> Generation:
    """What a member was told."""
    keys = tuple(key(one) for one in partitions)
    return Generation("g", generation, (member,), 0, "c", whole=False, assigned=keys)


def test_the_fewest_moves_even_out_the_shares():
    """What leavers had, and what newcomers need."""
    assert fewest_moves(["a", "a", "a", "a"], ["a", "b"]) == 2
    assert fewest_moves(["a", "a", "b", "b"], ["a"]) == 2
    assert fewest_moves(["a", "a", "b"], ["a", "b"]) == 0
    assert fewest_moves(["a", "a", "b", "b", "c"], ["a", "b"]) == 1
    assert fewest_moves(["a", "a"], []) == 0


def test_moves_are_counted_between_whole_generations():
    """A generation that was not told of whole is passed over, with both its neighbours."""
    history = History(
        generations=[
            *(told(1, "a", 0, 1), told(1, "b", 2, 3)),
            *(told(2, "b", 0, 1, 2), told(2, "c", 3)),
            told(3, "b", 0, 1),
        ]
    )
    # a left and c came: b keeps two, so two had to move; all but partition 2 did.
    assert moves(history, {"g": 4}) == (3, 2)


def test_reassigning_is_from_a_leaver_to_the_next_owner():
    """One that was killed, or that is static, does not tell how fast leaving is."""
    held = [
        Ownership("a", key(0), "a", 1, 0, 10 * MS, "left"),
        Ownership("b", key(0), "b", 2, 35 * MS, None),
        Ownership("a", key(1), "a", 1, 0, 10 * MS, "died"),
        Ownership("b", key(1), "b", 2, 50 * MS, None),
        Ownership("a", key(2), "a", 1, 0, 10 * MS, "left", "static-a"),
        Ownership("b", key(2), "b", 2, 50 * MS, None),
    ]
    assert reassigned_ms(held) == [25.0]


def test_a_client_that_comes_back_for_its_partition_ends_the_wait():
    """It is served from then on; another client's turn, much later, says nothing of this leave."""
    held = [
        Ownership("a", key(0), "a-1", 1, 0, 10 * MS, "left"),
        Ownership("a", key(0), "a-2", 2, 40 * MS, 60 * MS, "left"),
        Ownership("b", key(0), "b", 3, 70_000 * MS, None),
    ]
    assert reassigned_ms(held) == [30.0, 69_940.0]


def test_an_owner_from_before_the_leave_is_no_next_one():
    """It was told of the partition while the leaver still had it; without a next one: nothing."""
    held = [
        Ownership("a", key(0), "a", 1, 0, 10 * MS, "left"),
        Ownership("b", key(0), "b", 2, 5 * MS, None),
    ]
    assert reassigned_ms(held) == []
