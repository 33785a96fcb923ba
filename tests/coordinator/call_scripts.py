"""Golden scenarios of the calls: tests/testdata/coordinator/*.txt, each on a node of its own.

The first line names the rules that the file shows. Then blocks: commands, one a line, `----`, their
output, an empty line. A request prints its answer. `X: request` begins a call named X, which may
be held; its answer is printed where it comes, as `   X: ...`, or never.

    topic NAME COUNT
    join GROUP CLIENT [nonce=1] [member=ID] [instance=I] [session=MS] [rebalance=MS] [type=consumer]
                      [protocols=range] [topics=t] [meta=m] [reason=R | reason-chars=N]
                      `nonce=` without one
    sync GROUP MEMBER GENERATION [MEMBER:ASSIGNMENT ...] [type=] [name=] [instance=]
    beat PROCESS GROUP/MEMBER/GENERATION[/INSTANCE] ...      the next call of this client process
    leave GROUP MEMBER[@INSTANCE] ...
    commit GROUP [MEMBER GENERATION] TOPIC/PARTITION=OFFSET[:METADATA-BYTES] ... [seq=N] [instance=]
    fetch GROUP ... [TOPIC/PARTITION ... | all] [stable]     several groups: one call
    find GROUP[@KNOWN-TERM] ...
    list [states=A,B] [types=A,B] [protocol-types=A,B]      `_` in a state is a space
    describe GROUP ... [confirmed]     `confirmed`: by a quorum, first
    delete GROUP ... | delete-offsets GROUP TOPIC/PARTITION ...
    cut X                              the call's connection breaks
    pass MS | wall-jump MS             time goes on | the clock on the wall is set so much further
    hold | go                          no quorum answers what is proposed or read | one does
    hold writes                        reads are confirmed, proposals are not committed
    quorum lost | quorum heard         from its peers the leader hears nothing | hears them again
    depose [GROUP] [to=NODE]           this node leads the group's shard (every one) no more
    elect [GROUP]                      it leads again, in the next term
    load [GROUP] | serve [GROUP]       it is elected, its no-op not applied yet | it is applied
    full | room                        the log refuses proposals | takes them
    written GROUP                      commands in the log of its shard since this was asked last
    why GROUP                          the events of its shard since this was asked last
    restart                            the node's process starts anew from what is stored
"""

import asyncio
import inspect
from pathlib import Path

from musterd.coordinator.codec import decode_entry
from musterd.coordinator.runtime.routing import shard_of
from tests.coordinator.answers import say, say_event
from tests.coordinator.requests import Asking
from tests.coordinator.scripted import HungUpError, Names, Peer, ScriptedLoop, ScriptedNode


def run_file(path: Path) -> tuple[str, str]:
    """The file as recorded, and as this build would record it."""
    recorded = path.read_text("utf-8")
    with asyncio.Runner(loop_factory=ScriptedLoop) as runner:
        return recorded, runner.run(_play(recorded))


async def _play(recorded: str) -> str:
    head, *blocks = recorded.strip("\n").split("\n\n")
    script = Script()
    parts = [head]
    for block in blocks:
        lines, _, _ = block.partition("\n----")
        said = [line for line in lines.splitlines() if not line.startswith("#")]
        printed = [out for line in said for out in await script.run(line)]
        parts.append("\n".join([lines, "----", *printed]))
    script.end()
    return "\n\n".join(parts) + "\n"


class Script:
    """A node, the calls that are open, and what was printed."""

    def __init__(self) -> None:
        self.node = ScriptedNode(asyncio.get_running_loop())
        self.node.lead()
        self.names = Names()
        self.asking = Asking(self.names)
        self.calls: dict[str, asyncio.Task] = {}
        self.seen: dict[tuple[str, int], int] = {}
        self.events: dict[int, list] = {}
        self._observe()

    def end(self) -> None:
        """Leave nothing open."""
        for task in self.calls.values():
            task.cancel()

    async def run(self, line: str) -> list[str]:
        """One command; what it prints, and the answers that came meanwhile."""
        label, colon, request = line.partition(": ")
        words = (request if colon else line).split()
        options = dict(one.split("=", 1) for one in words[1:] if "=" in one and "/" not in one)
        plain = [one for one in words[1:] if one not in {f"{k}={v}" for k, v in options.items()}]
        verb = words[0].replace("-", "_")
        if hasattr(self, f"do_{verb}"):
            out = getattr(self, f"do_{verb}")(plain, options)
            printed = (await out if inspect.isawaitable(out) else out) or []
            await self.node.settle()
        else:
            method, message = getattr(self.asking, verb)(plain, options)
            task = asyncio.ensure_future(self._call(method, message))
            self.calls[label if colon else ""] = task
            await self.node.settle()
            printed = [] if colon else self._take("", indent="") or ["(waits)"]
        for name in list(self.calls):
            printed += self._take(name, indent=f"   {name}: ")
        return [self.names.short(one) for one in printed]

    async def _call(self, method: str, message) -> list[str]:
        node = self.node
        service = next(s for s in (node.groups, node.admin, node.topics) if hasattr(s, method))
        try:
            return say(await getattr(service, method)(message, Peer()))
        except HungUpError as hung:
            return [str(hung)]

    def _take(self, name: str, indent: str) -> list[str]:
        task = self.calls.get(name)
        if task is None or not task.done():
            return []
        del self.calls[name]
        if task.cancelled():
            return []
        first, *rest = task.result()
        return [indent + first, *(" " * len(indent) + one for one in rest)]

    def _shards(self, plain) -> list[int]:
        return [shard_of(plain[0], 4)] if plain else [0, 1, 2, 3]

    # ---- what happens

    def do_pass(self, plain, _options):
        return self.node.pass_ms(int(plain[0]))

    def do_wall_jump(self, plain, _options):
        self.node.wall_jump_ms += int(plain[0])

    def do_cut(self, plain, _options):
        self.calls.pop(plain[0]).cancel()

    def do_hold(self, plain, _options):
        self.node.applying, self.node.reading = False, plain == ["writes"]

    def do_go(self, _plain, _options):
        self.node.applying = True

    def do_quorum(self, plain, _options):
        self.node.applying = plain == ["heard"]
        for log in self.node.logs:
            log.quorum_heard = self.node.applying

    def do_depose(self, plain, options):
        leader = int(options["to"]) if "to" in options else None
        for shard in self._shards(plain):
            self.node.depose(shard, leader)

    def do_elect(self, plain, _options):
        for shard in self._shards(plain):
            self.node.elect(shard)

    def do_load(self, plain, _options):
        for shard in self._shards(plain):
            self.node.load(shard)

    def do_serve(self, plain, _options):
        for shard in self._shards(plain):
            self.node.logs[shard].lead()

    def do_full(self, _plain, _options):
        for log in self.node.logs:
            log.overloaded = True

    def do_room(self, _plain, _options):
        for log in self.node.logs:
            log.overloaded = False

    def do_restart(self, _plain, _options):
        self.end()
        self.calls.clear()
        before = self.node
        self.node = ScriptedNode(before.loop)
        for shard, log, old in zip(self.node.shards, self.node.logs, before.logs, strict=True):
            log.view, log.applied_index, log.term = old.view, old.applied_index, old.term
            log.entries = old.entries
            for _ in shard.reload(log.view):
                pass
        self._observe()

    # ---- what is there to see

    def do_written(self, plain, _options):
        shard = shard_of(plain[0], 4)
        entries = self.node.logs[shard].entries
        since = self.seen.get(("written", shard), 0)
        self.seen["written", shard] = len(entries)
        commands = [c for e in entries[since:] for c in decode_entry(e).commands]
        said = [type(c).__name__ for c in commands if hasattr(c, "group_id")]
        return [" ".join(said) or "nothing"]

    def do_why(self, plain, _options):
        shard = shard_of(plain[0], 4)
        said, self.events[shard] = self.events.get(shard, []), []
        return said or ["nothing"]

    def _observe(self) -> None:
        for shard in self.node.shards:
            shard.subscribe(self._applied)

    def _applied(self, number, _index, _entry, results) -> None:
        told = self.events.setdefault(int(number), [])
        events = (event for result in results for event in result.events)
        told += [say_event(event) for event in events if hasattr(event, "group_id")]
