"""Where a reset puts a partition, and the file that says so: numbers alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.cli.errors import CommandError, ExitCode
from muster.cli.group.offset_file import FILE_MAX_BYTES, PARTITION_MAX, read_offsets, write_offsets
from muster.cli.group.offset_plan import (
    OFFSET_MAX,
    Known,
    plan,
    shift_by,
    to_current,
    to_earliest,
    to_given,
    to_latest,
    to_offset,
)
from muster.cli.group.partition_arguments import parse_place

KEY = ("orders", 0)
ORDERS = '{"topic":"orders","partition":0,"offset":40}'
PAYMENTS = '{"topic":"payments","partition":1,"offset":5}'
offsets = st.integers(0, OFFSET_MAX)
ends = st.none() | offsets
known = st.builds(Known, offset=offsets, start_offset=ends, end_offset=ends)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
partitions = st.tuples(names, st.integers(0, PARTITION_MAX))


def _one(now, rule):
    steps, without = plan([KEY], {} if now is None else {KEY: now}, rule)
    return steps[0] if steps else without[KEY]


@given(known, st.integers())
def test_a_shift_never_leaves_the_known_ends(now, count):
    """Never below 0, the start or above the end; and exactly as asked for where that is inside."""
    step = _one(now, shift_by(count))
    assert 0 <= step.new <= OFFSET_MAX
    assert now.end_offset is None or step.new <= now.end_offset
    low = min(now.start_offset or 0, OFFSET_MAX if now.end_offset is None else now.end_offset)
    assert step.new >= low
    assert step.cut == (step.new != now.offset + count)
    if low <= now.offset + count <= (OFFSET_MAX if now.end_offset is None else now.end_offset):
        assert step.new == now.offset + count


@given(known)
def test_a_step_keeps_only_ends_that_its_offset_allows(now):
    """Whatever the target: start <= offset <= end, where they are known and stored with it."""
    for rule in (to_current, to_earliest, to_latest, to_offset(17), shift_by(-3)):
        step = _one(now, rule)
        if isinstance(step, str):
            continue
        assert step.start_offset is None or step.start_offset <= step.new
        assert step.end_offset is None or step.new <= step.end_offset
        assert step.metadata == (now.metadata if step.new == now.offset else "")


@given(known)
def test_earliest_latest_and_current_are_what_was_reported(now):
    """They take the reported number as it is, and refuse where there is none."""
    for rule, at in ((to_earliest, now.start_offset), (to_latest, now.end_offset)):
        step = _one(now, rule)
        assert ("no " in step) if at is None else (step.new == at)
    assert _one(now, to_current).new == now.offset


@pytest.mark.parametrize("rule", [to_current, to_earliest, to_latest, shift_by(1)])
def test_without_a_stored_offset_there_is_nothing_to_start_from(rule):
    """Only a given offset needs none."""
    assert _one(None, rule) == "no offset is stored"
    assert _one(None, to_offset(4)).new == 4
    assert _one(None, to_given({KEY: 5})).new == 5
    assert _one(None, to_offset(4)).prior is None


def test_a_plan_is_in_order_and_names_each_partition_once():
    """By topic and number, however they were given."""
    wanted = [("b", 1), ("a", 10), ("a", 9), ("b", 1)]
    steps, _ = plan(wanted, {}, to_offset(0))
    assert [(s.topic, s.partition) for s in steps] == [("a", 9), ("a", 10), ("b", 1)]


@given(st.dictionaries(partitions, offsets, min_size=1, max_size=5))
@pytest.mark.parametrize("name", ["offsets.csv", "offsets.JSON", "offsets"])
def test_what_is_exported_is_read_back(tmp_path_factory, name, given_offsets):
    """Any name, any number: commas, quotes and line breaks included."""
    path = tmp_path_factory.mktemp("offsets") / name
    write_offsets(path, given_offsets)
    assert read_offsets(path) == given_offsets


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("f.csv", "orders,0,40\npayments,1,5\n"),
        ("f.csv", "\ufeffTopic, Partition ,Offset\r\norders, 0, 40\r\n\r\npayments,1,5"),
        ("f.csv", '"orders","0","40"\n"payments",1,5\n'),
        (
            "f.json",
            f'[{PAYMENTS},{ORDERS[:-1]},"more":true}}]',
        ),
        (
            "f.json",
            f'{{"schema":"any","offsets":[{ORDERS}, {PAYMENTS}]}}',
        ),
    ],
)
def test_forms_that_a_file_may_have(tmp_path, name, text):
    """With and without a header, spaces, quotes, a byte order mark; a list or an object."""
    path = tmp_path / name
    path.write_bytes(text.encode())
    assert read_offsets(path) == {("orders", 0): 40, ("payments", 1): 5}


@pytest.mark.parametrize(
    ("name", "raw", "says"),
    [
        ("f.csv", b"", "has no offsets"),
        ("f.csv", b"topic,partition,offset\n", "has no offsets"),
        ("f.csv", b"orders,0\n", "line 1: 2 cells"),
        ("f.csv", b"orders,0,1\norders,x,1\n", "line 2: the partition is 'x'"),
        ("f.csv", b"orders,0,-1\n", "line 1: the offset is '-1'"),
        ("f.csv", b"orders,0,1.5\n", "line 1: the offset is '1.5'"),
        ("f.csv", b"orders,0,9223372036854775808\n", "not a number from 0 to 9223372036854775807"),
        ("f.csv", b"orders,2147483648,1\n", "the partition is '2147483648'"),
        ("f.csv", b"orders,0," + b"9" * 5000, "line 1: the offset is '999"),
        ("f.csv", "orders,0,\u0664\n".encode(), "the offset is"),
        ("f.csv", b"orders,0,1\n\norders,0,2\n", "line 3: orders/0 is there twice"),
        ("f.csv", b",0,1\n", "line 1: the topic has no name"),
        ("f.csv", b'"orders,0,1\n', "line 1: unexpected end of data"),
        ("f.csv", b"\xff\xfe", "is not UTF-8 text"),
        ("f.json", b"{", "is not JSON"),
        ("f.json", b"{}", 'has no list "offsets"'),
        ("f.json", b"7", 'has no list "offsets"'),
        ("f.json", b'{"offsets": [7]}', "offset 1 of the list: an object"),
        ("f.json", b'[{"topic": "a", "partition": true, "offset": 1}]', "the partition is True"),
        ("f.json", b'[{"topic": "a", "partition": 0, "offset": "1"}]', "the offset is '1'"),
        ("f.json", b'[{"topic": "a", "partition": 0}]', "the offset is None"),
        ("f.json", b'[{"topic": "a", "partition": 0, "offset": 1e3}]', "the offset is 1000.0"),
        ("f.json", b"[" * 100_000, "is not JSON"),
        ("f.csv", b"a" * (FILE_MAX_BYTES + 1), "is larger than"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_is_a_usage_error_with_its_place(tmp_path, name, raw, says):
    """Nothing is guessed, nothing is left out."""
    path = tmp_path / name
    path.write_bytes(raw)
    with pytest.raises(CommandError) as refused:
        read_offsets(path)
    assert refused.value.exit_code is ExitCode.USAGE
    assert says in refused.value.message


def test_an_export_writes_over_nothing(tmp_path):
    """The copy of yesterday stays; so does a folder that is not there."""
    path = tmp_path / "offsets.csv"
    path.write_text("mine")
    for target, says in ((path, "exists"), (tmp_path / "no" / "f", "cannot be written")):
        with pytest.raises(CommandError) as refused:
            write_offsets(target, {KEY: 1})
        assert says in refused.value.message
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "place"),
    [("a", ("a", None)), ("a:0", ("a", [0])), ("a:1,0", ("a", [1, 0])), ("a:b:2", ("a:b", [2]))],
)
def test_a_place_is_a_topic_or_some_of_its_partitions(text, place):
    """The part after the last colon are numbers."""
    assert parse_place(text) == place


@pytest.mark.parametrize("text", [":0", "a:", "a:0,", "a:-1", "a:x", "a:\u0664", "a:" + "9" * 5000])
def test_a_place_that_is_neither_is_a_usage_error(text):
    """No number is guessed."""
    with pytest.raises(CommandError) as refused:
        parse_place(text)
    assert refused.value.exit_code is ExitCode.USAGE
