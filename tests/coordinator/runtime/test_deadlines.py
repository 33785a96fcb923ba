"""The heap of deadlines agrees with a plain dictionary of deadlines."""

from hypothesis import given
from hypothesis import strategies as st

from musterd.coordinator.runtime.deadlines import KeyedHeap

KEYS = st.sampled_from(["a", "b", "c", "d", "e"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arm"), KEYS, st.integers(0, 50)),
        st.tuples(st.just("drop"), KEYS, st.just(0)),
        st.tuples(st.just("due"), st.just(""), st.integers(0, 50)),
    ),
    max_size=200,
)


@given(STEPS)
def test_due_keys_are_those_of_a_plain_dictionary(steps):
    """Each key is due once, at its last deadline, earliest first."""
    heap, model = KeyedHeap(), {}
    for verb, key, at in steps:
        if verb == "arm":
            heap.arm(key, at)
            model[key] = at
        elif verb == "drop":
            heap.drop(key)
            model.pop(key, None)
        else:
            due = heap.pop_due(at, 100)
            expected = sorted(((t, k) for k, t in model.items() if t <= at))
            assert [(t, k) for k, t in due] == expected
            for k, _ in due:
                del model[k]
        assert len(heap) == len(model)
        assert set(heap) == set(model)


def test_the_limit_leaves_the_rest_for_the_next_turn():
    """At most `limit` keys come out; the others stay due."""
    heap = KeyedHeap()
    for number in range(10):
        heap.arm(f"k{number}", number)
    assert [k for k, _ in heap.pop_due(100, 3)] == ["k0", "k1", "k2"]
    assert len(heap.pop_due(100, 100)) == 7


def test_arming_again_and_again_does_not_grow_the_heap():
    """A session that is re-armed a million times takes one entry, not a million."""
    heap = KeyedHeap()
    for at in range(10_000):
        heap.arm("member", at)
        heap.arm("other", 10_000 - at)
    assert len(heap._heap) < 200
    assert heap.get("member") == 9_999
