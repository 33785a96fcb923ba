"""What a process recorded is read again as it was, and damage is named."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from musterd.chaos import history, recording
from musterd.chaos.history import Key, Outcome
from musterd.chaos.history_files import MemoryRecorder, read_files, read_folder
from musterd.chaos.recording import Recorder, RecordingError, RecordingFullError

KEY = Key("billing", "orders", 3)
RECORDS = [
    history.Generation("billing", 7, ("a", "b"), 5, "node-0", True, 4, None),
    history.Generation("billing", 7, ("a",), 6, "w1", False, 4, (KEY,)),
    history.Members("billing", ("a", "b"), 5, 4),
    history.Removal("billing", "a", 7, 8),
    history.StaleJoin(KEY, "a", 7),
    history.StoreWrite("w1", KEY, 7, 1, 9, True, True),
    history.FaultSpan("kill", ("node-0",), 10, 20, True, "leader"),
    history.Checkpoint(0, 3, 100, "abc"),
    history.Side((0, 1), 10, 20),
    history.NodeState(1, "corrupt", 10, 20, "refused", "CRC"),
    history.Round("billing", 7, "member_joined", "node-0"),
    history.Operated("op", "kick", "billing", 40, 50, history.Outcome.OK, "m-1"),
    history.Replayed("python", 3, 100, "abc"),
    history.ShardLog(3, 1),
    history.Logged(3, KEY, (5, 7)),
    history.Expected("billing", (("orders", 4),), 6000, 9000, True),
]
WHERE = [
    "generations",
    "generations",
    "members",
    "removals",
    "stale_joins",
    "store_writes",
    "faults",
    "checkpoints",
    "minorities",
    "node_states",
    "rounds",
    "operated",
    "replays",
    "logs",
    "logged",
    "expected",
]


def path_in(folder: Path, name: str = "w1") -> Path:
    """Where a process of this name records."""
    return folder / f"{name}{recording.SUFFIX}"


def lines_of(path: Path) -> list[str]:
    """With their ends."""
    return path.read_text().splitlines(keepends=True)


def operation(**fields) -> str:
    """The line of a delete that has ended, with other values where they are named."""
    key = '{"group":"","topic":"","partition":0}'
    fields = {"id": "1", "kind": '"delete"', "value": "-1", "ended_ns": "5", **fields}
    number = fields.pop("id")
    told = {"client": '""', "key": key, "began_ns": "1", **fields}
    written = ",".join(f'"{name}":{value}' for name, value in told.items())
    return f'{{"operation": {{"id":{number},"operation":{{{written}}}}}}}\n'


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A file with a commit, an unanswered one, a read, and an ownership that was released."""
    path = path_in(tmp_path)
    with Recorder(path, "w1") as recorder:
        one = recorder.invoke(
            "w1", "commit", KEY, value=5, member_id="m", generation=2, numbered=True
        )
        recorder.end(one, Outcome.OK, node=1)
        recorder.invoke("w1", "commit", KEY, value=6, member_id="m", generation=2, numbered=True)
        read = recorder.invoke("w1", "read", KEY, node=2)
        recorder.end(read, Outcome.OK, value=5)
        owned = recorder.owns("w1", KEY, "m", 2, "static-1")
        recorder.revoking(owned)
        recorder.released(owned, "revoked")
    return path


def test_operations_come_back_with_what_was_known_at_begin_and_at_end(written):
    """Value, node, outcome and both times."""
    commit, unanswered, read = read_files([written]).operations
    assert (commit.kind, commit.key, commit.value, commit.node) == ("commit", KEY, 5, 1)
    assert (commit.outcome, commit.member_id, commit.generation) == (Outcome.OK, "m", 2)
    assert (commit.numbered, unanswered.numbered, read.numbered) == (True, True, False)
    assert commit.ended_ns is not None
    assert commit.began_ns <= commit.ended_ns <= unanswered.began_ns
    assert (unanswered.outcome, unanswered.ended_ns) == (Outcome.UNKNOWN, None)
    assert (read.kind, read.value, read.node) == ("read", 5, 2)


def test_ownership_comes_back_with_its_end(written):
    """And with the moment when it was asked for back."""
    (owned,) = read_files([written]).ownerships
    assert (owned.ended, owned.owner, owned.generation) == ("revoked", "instance:static-1", 2)
    assert owned.revoking_ns is not None
    assert owned.until_ns is not None
    assert owned.from_ns <= owned.revoking_ns <= owned.until_ns


def test_every_kind_of_record_comes_back_as_it_was(tmp_path):
    """Each into its own list; facts by name."""
    with Recorder(path_in(tmp_path), "runner") as recorder:
        for record in RECORDS:
            recorder.record(record)
        recorder.fact("ended_ns", 99)
    read = read_folder(tmp_path)
    for where, record in zip(WHERE, RECORDS, strict=True):
        assert record in getattr(read, where)
    assert read.facts == {"ended_ns": 99}


def test_there_is_a_list_and_a_line_for_every_kind_of_record():
    """A record that is added to the history and forgotten here would be lost in silence."""
    shapes = {type(record) for record in RECORDS}
    assert shapes < set(recording.LINES.values())
    assert set(history.History.__slots__) == {*WHERE, "operations", "ownerships", "facts"}


def test_files_of_several_processes_are_merged_in_the_order_of_time(tmp_path):
    """Whatever the order of the files."""
    with Recorder(path_in(tmp_path, "z"), "z") as z, Recorder(path_in(tmp_path, "a"), "a") as a:
        for value, recorder in enumerate([z, a, a, z]):
            number = recorder.invoke(recorder.path.name[0], "commit", KEY, value=value)
            recorder.end(number, Outcome.OK)
    assert [one.value for one in read_folder(tmp_path).operations] == [0, 1, 2, 3]


def test_the_death_of_a_client_ends_what_it_owned_and_not_what_its_successor_owns(tmp_path):
    """The runner records it in a file of its own."""
    with Recorder(path_in(tmp_path, "w1"), "w1") as first:
        first.owns("w1", KEY, "m1", 1)
    with Recorder(path_in(tmp_path, "runner"), "runner") as runner:
        runner.died("w1")
    with Recorder(path_in(tmp_path, "w1-again"), "w1") as second:
        second.owns("w1", KEY, "m2", 2)
    dead, alive = read_folder(tmp_path).ownerships
    assert (dead.member_id, dead.ended) == ("m1", "died")
    assert dead.until_ns is not None
    assert dead.until_ns <= alive.from_ns
    assert (alive.member_id, alive.ended, alive.until_ns) == ("m2", "", None)


def test_what_was_begun_by_a_process_that_is_killed_is_in_the_file(tmp_path):
    """The line is the kernel's before the call goes on: SIGKILL loses none."""
    path = path_in(tmp_path)
    program = f"""
import os, signal, sys
from pathlib import Path
from musterd.chaos.history import Key
from musterd.chaos.recording import Recorder
recorder = Recorder(Path({str(path)!r}), "w1")
for value in range(100):
    recorder.invoke("w1", "commit", Key("g", "t", 0), value=value)
os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    operations = read_files([path]).operations
    assert [one.value for one in operations] == list(range(100))
    assert {one.outcome for one in operations} == {Outcome.UNKNOWN}


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_torn_last_line_is_dropped(written, cut):
    """Its writer was killed in it."""
    whole = read_files([written])
    data = written.read_bytes()
    written.write_bytes(data[:-cut])
    torn = read_files([written])
    assert torn.operations == whole.operations
    assert torn.ownerships[0].until_ns is None


def test_a_file_of_which_not_even_the_header_was_written_is_empty(tmp_path):
    """Killed at once."""
    path_in(tmp_path).write_bytes(b'{"header"')
    assert read_folder(tmp_path).operations == []


@pytest.mark.parametrize(
    ("number", "line", "says"),
    [
        (3, '{"operation": {"id":1,"oper\n', "no record that this muster knows"),
        (3, "\0\0\0\0\n", "no record that this muster knows"),
        (3, '{"begin": {"id":1}}\n', 'no record that this muster knows: \'{"begin"'),
        (3, operation(id='"1"'), "valid integer"),
        (3, operation(outcome='"fine"'), "'ok', 'fail' or 'unknown'"),
        (3, operation(why="1"), "Unexpected"),
        (3, '{"operation": {"id":1}}\n', "operation"),
        (3, operation(id="9"), "9 ends and is not under way"),
        (3, operation(ended_ns="0"), "1 ended before it began"),
        (3, operation(ended_ns="null"), "1 begins a second time"),
        (3, '{"operation": null}\n', "an empty record"),
        (6, operation(id="3", kind='"read"', value="null", outcome='"ok"'), "without a value"),
        (2, operation(value="null", ended_ns="null"), "a delete without a value"),
        (2, operation(), "1 ends and is not under way"),
        (3, '{"header": {"version":2,"process":"w","boot":""}}\n', "a second header"),
        (1, '{"header": {"version":1,"process":"w","boot":""}}\n', "this muster reads version 2"),
        (1, '{"fact": {"name":"a","value":1}}\n', "there is no header"),
    ],
)
def test_any_other_damage_is_an_error_that_names_the_line(written, number, line, says):
    """Not one line is passed over."""
    lines = lines_of(written)
    lines[number - 1] = line
    written.write_text("".join(lines))
    with pytest.raises(RecordingError, match=f"line {number}: ") as error:
        read_files([written])
    assert says in str(error.value)


def test_a_line_without_end_is_damage_and_not_a_torn_one(written):
    """What is longer than any line is not read to its end."""
    with written.open("a") as file:
        file.write("x" * (recording.LINE_BYTES_MAX + 1))
    with pytest.raises(RecordingError, match=r"line 10: more than 65536 bytes"):
        read_files([written])


def test_an_unknown_kind_of_operation_is_refused(written):
    """By the writer and by the reader."""
    with Recorder(written.with_name("other"), "w") as recorder:
        with pytest.raises(ValueError, match="no kind of operation: 'get'; there are commit, "):
            recorder.invoke("w", "get", KEY)
        with pytest.raises(ValueError, match="a reset has a value before it is sent"):
            recorder.invoke("w", "reset", KEY)
        with pytest.raises(ValueError, match="no way to release: 'gone'"):
            recorder.released(recorder.owns("w", KEY, "m", 1), "gone")
    written.write_text(written.read_text().replace('"kind":"read"', '"kind":"get"'))
    with pytest.raises(RecordingError, match="no kind of operation: 'get'"):
        read_files([written])


def test_files_from_two_boots_are_not_merged(written):
    """Their clocks count from different moments."""
    other = path_in(written.parent, "w2")
    head = json.loads(lines_of(written)[0])
    head["header"]["boot"] = "another"
    other.write_text(json.dumps(head) + "\n")
    with pytest.raises(
        RecordingError, match=r"not recorded in the same boot of the machine as .*w1"
    ):
        read_files([written, other])


def test_two_values_of_one_fact_are_an_error(tmp_path):
    """Two processes that disagree about the set-up were not in one run."""
    for name, value in (("a", 1), ("b", 2)):
        with Recorder(path_in(tmp_path, name), name) as recorder:
            recorder.fact("ended_ns", value)
    with pytest.raises(RecordingError, match="two values for ended_ns: 1 and 2"):
        read_folder(tmp_path)


def test_an_empty_folder_is_an_error(tmp_path):
    """Nothing recorded is no history without violations."""
    with pytest.raises(RecordingError, match="has no file"):
        read_folder(tmp_path)


def test_a_full_file_takes_no_new_operation_and_still_the_end_of_every_open_one(tmp_path):
    """The maximum holds, and no outcome is lost to it."""
    path = path_in(tmp_path)
    begun = []
    with Recorder(path, "w1", bytes_max=20_000) as recorder:
        with pytest.raises(RecordingFullError, match="has reached 20000 bytes"):
            begun.extend(recorder.invoke("w1", "commit", KEY, value=n) for n in range(1000))
        with pytest.raises(RecordingFullError):
            recorder.owns("w1", KEY, "m", 1)
        for number in begun:
            recorder.end(number, Outcome.UNKNOWN, error="\1" * 1000)
    assert len(begun) > 10
    assert path.stat().st_size <= 20_000
    assert len(read_files([path]).operations) == len(begun)


def test_a_file_is_never_written_twice(written):
    """Two lives of a process are two files."""
    with pytest.raises(RecordingError, match="File exists"):
        Recorder(written, "w1")


def test_after_a_failed_write_nothing_more_is_recorded(tmp_path):
    """A history with a hole would prove what is not so."""
    recorder = Recorder(path_in(tmp_path), "w1")
    os.close(recorder._file)
    with pytest.raises(RecordingError, match="Bad file descriptor"):
        recorder.invoke("w1", "read", KEY)
    with pytest.raises(RecordingError, match="Bad file descriptor"):
        recorder.fact("a", 1)
    recorder._file = -1
    recorder.close()


def test_a_closed_recorder_says_so(tmp_path):
    """It is an error, not silence."""
    recorder = Recorder(path_in(tmp_path), "w1")
    recorder.close()
    recorder.close()
    with pytest.raises(RecordingError, match="the recorder is closed"):
        recorder.fact("a", 1)


def test_threads_may_share_a_recorder(tmp_path):
    """Every line is whole."""
    path = path_in(tmp_path)
    with Recorder(path, "w1") as recorder:

        def work() -> None:
            for value in range(200):
                number = recorder.invoke("w1", "commit", KEY, value=value)
                recorder.end(number, Outcome.OK)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(read_files([path]).operations) == 800


def test_a_recording_in_memory_refuses_what_contradicts_it():
    """As a file that is read again does."""
    with pytest.raises(RecordingError, match="7 is not under way"):
        MemoryRecorder(lambda: 0).end(7, Outcome.OK)
