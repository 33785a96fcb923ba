"""Exit codes: documented, complete, and what scripts really get."""

import re
import threading
from pathlib import Path

import pytest

from muster.cli.cluster import commands as cluster
from muster.cli.errors import ExitCode
from muster.cli.group import commands as group
from muster.cli.group import list as group_list
from muster.cli.group import offsets as group_offsets
from muster.cli.group import reset as group_reset
from muster.cli.group import waits as group_waits
from muster.cli.refusals import BY_CODE, refused
from muster.v1 import admin_pb2
from muster.v1.errors_pb2 import ErrorCode

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"


def test_documented_codes_are_the_codes():
    """docs/cli.md lists each exit code once, with its name, and no other."""
    rows = re.findall(r"^\| (\d+) \| ([a-z ]+) \|", DOCS.read_text(), re.MULTILINE)
    listed = {int(code): name.replace(" ", "_").upper() for code, name in rows}
    assert len(rows) == len(listed)
    assert listed == {int(code): code.name for code in ExitCode}


UNHEALTHY = {
    "muster/cli/audit.py": {"audit verify"},
    "muster/cli/doctor.py": {"doctor"},
    "muster/cli/cluster/commands.py": {"cluster status"},
    "muster/cli/cluster/verify.py": {"cluster verify"},
    "backup/cli.py": {"cluster backup verify", "cluster restore"},
    "backup/group_cli.py": {"group restore"},
    "backup/take.py": {"cluster backup"},
    "chaos/report/cli.py": {"chaos report"},
    "coordinator/node/cli.py": {"init"},
    "export/command.py": {"export"},
    "replay/cli.py": {"replay"},
}
"""By file, the commands that it ends with 5."""
ROOMS = ("muster", "backup", "bench", "chaos", "coordinator", "demo", "export", "replay")


def test_the_commands_that_end_with_5_are_those_of_the_page():
    """In code by `ExitCode.UNHEALTHY`, or `unsound=True` (backup/told.py), and nowhere else."""
    files = {file for room in ROOMS for file in (DOCS.parents[1] / room).rglob("*.py")}
    ending = {
        str(file.relative_to(DOCS.parents[1]))
        for file in files
        if re.search(r"ExitCode\.UNHEALTHY|unsound=True", file.read_text("utf-8"))
    }
    assert ending - {"backup/told.py"} == UNHEALTHY.keys()
    [row] = re.findall(r"^\| 5 \| unhealthy \| (.*) \|$", DOCS.read_text(), re.MULTILINE)
    named = set(re.findall(r"`([a-z][a-z -]+)`", row))
    assert named == set().union(*UNHEALTHY.values())


def test_documented_columns_are_the_columns():
    """docs/cli.md shows the columns that the commands print."""
    text = DOCS.read_text()
    for columns in (
        *(group.STATE_COLUMNS, group.MEMBER_COLUMNS, group_list.COLUMNS),
        *(group_offsets.OFFSET_COLUMNS, group_reset.COLUMNS),
        *(cluster.NODE_COLUMNS, cluster.SHARD_COLUMNS, cluster.REFUSAL_COLUMNS),
    ):
        assert f"`{' '.join(columns)}`" in text
    for optional in (
        group_waits.WAIT_COLUMNS,
        [group_waits.AWAITED_COLUMN],
        [group_offsets.START_COLUMN],
    ):
        assert f"`{' '.join(optional)}`" in text


def test_every_server_error_has_an_exit_code_and_a_next_step():
    """A new error code in the protocol is not forgotten in the CLI; none ends with 0."""
    for name, code in ErrorCode.items():
        if code == ErrorCode.NONE:
            continue
        exit_code, next_step = BY_CODE[code]
        assert exit_code is not ExitCode.OK, name
        assert next_step, name


def test_unknown_error_number_is_an_error_and_not_a_crash():
    """A newer server's error is shown by its number."""
    error = refused(4711, "news")
    assert (error.exit_code, error.message) == (ExitCode.ERROR, "error 4711: news")


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (ErrorCode.UNKNOWN_SERVER_ERROR, 1),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, 2),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 3),
        (ErrorCode.INVALID_PARTITIONS, 4),
        (ErrorCode.FENCED_INSTANCE_ID, 4),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 7),
        (ErrorCode.REQUEST_TIMED_OUT, 124),
    ],
)
def test_a_refusal_ends_with_its_codes_exit_code(cluster, muster, no, code, expected):
    """The server's status decides the exit code, and its message is shown."""
    answer = admin_pb2.CreateTopicResponse(status=no(code, "because"))
    cluster.nodes[0].script["CreateTopic"] = answer
    ran = muster("topic", "create", "t", "--partitions", "1")
    assert ran.exit_code == expected
    assert f"{ErrorCode.Name(code)}: because" in ran.err
    assert "next: " in ran.err
    assert ran.out == ""


def test_no_leader_until_the_timeout_is_6(cluster, muster, no):
    """A retriable refusal is repeated until the command's time is over, and then says no leader."""
    status = no(ErrorCode.COORDINATOR_NOT_AVAILABLE, "no leader", retriable=True)
    cluster.nodes[0].script["CreateTopic"] = admin_pb2.CreateTopicResponse(status=status)
    ran = muster("topic", "create", "t", "--partitions", "1", "--timeout", "2")
    assert ran.exit_code == 6
    assert len(cluster.nodes[0].named("CreateTopic")) > 1


def test_a_node_that_does_not_answer_is_124(cluster, muster):
    """A call that hangs ends with the command's timeout."""
    release = threading.Event()

    def hang(request):
        release.wait(30)
        return admin_pb2.ListTopicsResponse()

    cluster.nodes[0].script["ListTopics"] = hang
    try:
        ran = muster("topic", "list", "--timeout", "0.4")
    finally:
        release.set()
    assert ran.exit_code == 124
    assert "did not answer in time" in ran.err


def test_an_old_server_is_named(cluster, muster):
    """A call that the server does not know ends with 1 and points at the versions."""
    cluster.nodes[0].script.pop("ListTopics", None)
    ran = muster("topic", "list")
    assert ran.exit_code == 1
    assert "UNIMPLEMENTED" in ran.err
    assert "muster version" in ran.err
