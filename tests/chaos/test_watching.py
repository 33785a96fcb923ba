"""The watcher writes down what nodes say of whole groups."""

import asyncio

from muster.v1 import admin_pb2
from musterd.chaos.history_files import read_folder
from musterd.chaos.workloads.watcher import Watcher
from tests.chaos.briefs import brief

AT = "127.0.0.1:1"


class _Node:
    """A node whose group g is stable in generation 3, with other members each time."""

    def __init__(self, *members: str) -> None:
        self._members = list(members)

    async def DescribeGroups(self, request, timeout):  # noqa: N802, ASYNC109 - as gRPC has it
        """One member at a time."""
        answer = admin_pb2.DescribeGroupsResponse()
        group = answer.groups.add(group_id="g", generation=3, state="Stable")
        group.members.add(member_id=self._members.pop(0))
        return answer


def test_a_generation_that_is_given_twice_is_written_down_with_each_set_of_members(
    tmp_path,
) -> None:
    """Once each: inv-I3 has to see that a number came back with others."""
    written = asyncio.run(_watch(tmp_path))
    assert [(one.generation, one.members) for one in written] == [(3, ("a",)), (3, ("b",))]


def test_the_members_of_a_modern_group_are_written_down_when_they_are_others(tmp_path) -> None:
    """With when it was last said that they were those before."""
    first, second = asyncio.run(_watch_members(tmp_path))
    assert (first.members, first.former_ns) == (("a",), None)
    assert second.members == ("b",)
    assert first.asked_ns < second.former_ns < second.asked_ns


async def _watch_members(folder):
    watcher = Watcher(brief("watcher", folder, AT, 0, {}))
    watcher._modern, watcher._members, watcher._raw = ("g",), {}, watcher.raw()
    watcher._raw.admins[AT] = _Node("a", "a", "b", "b")
    for _ in range(4):
        await watcher._ask_members(AT)
    await watcher._raw.aclose()
    watcher.close()
    return read_folder(folder).members


async def _watch(folder):
    watcher = Watcher(brief("watcher", folder, AT, 0, {}))
    watcher._groups, watcher._told, watcher._raw = ("g",), set(), watcher.raw()
    watcher._raw.admins[AT] = _Node("a", "a", "b")
    for _ in range(3):
        await watcher._describe(AT, 0)
    await watcher._raw.aclose()
    watcher.close()
    return read_folder(folder).generations
