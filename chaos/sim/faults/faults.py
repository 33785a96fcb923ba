"""The faults of nodes and of the network, with their rates."""

from collections import Counter
from collections.abc import Callable, Sequence

from musterd.chaos.sim.actors.operator import Operator
from musterd.chaos.sim.engine.network import CLIENTS
from musterd.chaos.sim.engine.world import World
from musterd.chaos.sim.faults import differing_states, full_disks, harmless_faults, hung_disks
from musterd.chaos.sim.faults.schedule import Draws, Planned, Struck

LAG_S = 0.25


class Faults:
    """Lets what is planned go wrong, each with draws of its own (schedule.py).

    `planned` is the whole list; `triggered` are the numbers of the faults which the run itself
    triggers that may happen, None: all.
    """

    def __init__(
        self,
        world: World,
        operator: Operator,
        salt: str,
        until_s: float,
        planned: Sequence[Planned],
        triggered: Sequence[int] | None = None,
    ) -> None:
        self.world, self.salt, self.until_s = world, salt, until_s
        self._operator = operator
        self.planned = tuple(planned)
        self.struck: list[Struck] = []
        self.triggered: list[str] = []
        """What the run itself triggered or was kept from, in order."""
        self._lost: list[int] = []
        """Whose disks were lost in this round of `replace_again`."""
        self._allowed = None if triggered is None else frozenset(triggered)
        self.rng = Draws(salt, -1)
        self.counts: Counter[str] = Counter()
        kinds: dict[str, Callable[[], bool]] = {
            "crash_after_send": self._crash_after_send,
            "crash": self._crash,
            "reconnect": self._reconnect,
            "stall": self._stall,
            "isolation": self._isolation,
            "one_way_cut": self._one_way_cut,
            "clock_rate": self._clock_rate,
            "transfer": self._transfer,
            "slow_sync": self._slow_sync,
            "pause": self._pause,
            "write_stall": self._write_stall,
            "bulk_reconnect": self._bulk_reconnect,
            "dead_bulk": self._dead_bulk,
            "garbage": self._garbage,
            "flipped_bit": self._flipped_bit,
            "drain": self._drain,
            "replace": self._replace,
            "replace_then_crash": self._replace_then_crash,
            "replace_again": self._replace_again,
            "newcomer_away": self._newcomer_away,
            "wipe": self._wipe,
            "lost_tail": self._lost_tail,
            "older_copy": self._older_copy,
            "forget_then_crash": self._forget_then_crash,
            "client_cut": self._client_cut,
            "client_one_way": self._client_one_way,
            "client_reset": self._client_reset,
            "client_pause": self._client_pause,
            "eio": self._eio,
            "disk_full": self._disk_full,
            "leader_sync_hangs": lambda: hung_disks.hang(self),
            "disks_full": lambda: full_disks.fill(self),
            "states_differ": lambda: differing_states.arm(self),
        }
        levels = world.levels
        if levels is not None:
            kinds |= {
                "upgrade": lambda: levels.upgrade(self),
                "put_back": lambda: levels.put_back(self),
                "finalise": lambda: levels.finalise(self),
                "former_installed": lambda: levels.former_installed(self),
            }
        self._kinds = {**kinds, **harmless_faults.kinds(self)}

    def start(self) -> None:
        """Raises KeyError where a planned fault is of no known kind."""
        for fault in self.planned:
            self.world.schedule(fault.at_s, self._strike, fault, self._kinds[fault.kind])

    def _strike(self, fault: Planned, run: Callable[[], bool]) -> None:
        if self.world.now >= self.until_s:
            return
        self.rng = Draws(self.salt, fault.index)
        injected = run()
        if injected:
            self.counts[fault.kind] += 1
        self.struck.append(Struck(fault, tuple(self.rng.drawn), injected))
        if self.world.trace is not None:
            did = "" if injected else " (nothing to do, or later)"
            drawn = " ".join(str(value) for value in self.rng.drawn)
            self.world.trace(
                f"{self.world.now:.4f} FAULT {fault.index} {fault.kind} {drawn}{did}".rstrip()
            )

    def may(self, kind: str) -> bool:
        """Whether a fault that the run itself triggers now may happen; asked once for each."""
        number = len(self.triggered)
        self.triggered.append(kind)
        allowed = self._allowed is None or number in self._allowed
        if self.world.trace is not None:
            did = "" if allowed else " (left out)"
            self.world.trace(f"{self.world.now:.4f} FAULT triggered {number} {kind}{did}")
        return allowed

    def _pair(self) -> tuple[int, int] | None:
        count = len(self.world.nodes)
        if count < 2:
            return None
        a, b = self.rng.sample(range(count), 2)
        return a, b

    def _node(self) -> int:
        return self.rng.randrange(len(self.world.nodes))

    def _crash_after_send(self) -> bool:
        """Die within a burst: the first few frames leave, the others do not."""
        node = self.world.nodes[self._node()]
        if len(self.world.nodes) == 1:
            return self._crash()
        node.crash_after_sends = self.rng.randrange(6)
        return False  # counted when it happens

    def _crash(self) -> bool:
        node = self._node()
        alive = self.world.nodes[node].alive
        if alive:
            self.world.crash(node, power_cut=self.rng.random() < 0.7)
        return alive

    def _reconnect(self) -> bool:
        pair = self._pair()
        if pair is None or not self.world.net.is_up(*pair):
            return False
        self.world.net.disconnect(*pair)
        self.world.schedule(self.rng.random() * 0.3, self.world.net.connect, *pair)
        return True

    def _stall(self) -> bool:
        pair = self._pair()
        if pair is not None:
            self.world.net.stall(*pair, self.rng.random() * 2.0)
        return pair is not None

    def _isolation(self) -> bool:
        node, seconds = self._node(), self.rng.random() * 2.5
        others = [o for o in range(len(self.world.nodes)) if o != node]
        for other in others:
            self.world.net.block(node, other, seconds)
            self.world.net.block(other, node, seconds)
        if self.world.clients is not None and self.rng.random() < 0.5:
            self._block_clients(node, seconds)  # else a minority that clients still reach
        return bool(others)

    def _block_clients(self, node: int, seconds: float) -> None:
        self.world.net.block(CLIENTS, node, seconds)
        self.world.net.block(node, CLIENTS, seconds)
        self.counts["isolated_from_clients"] += 1

    def _client_cut(self) -> bool:
        """No client reaches this node; its peers do."""
        node = self._node()
        self._block_clients(node, self.rng.random() * 2.5)
        return True

    def _client_one_way(self) -> bool:
        """Requests arrive and answers do not, or the other way round."""
        link = self.rng.choice(((CLIENTS, self._node()), (self._node(), CLIENTS)))
        self.world.net.block(*link, self.rng.random() * 2.5)
        return True

    def _client_reset(self) -> bool:
        """Every connection of clients to a node is reset."""
        clients = self.world.clients
        return clients is not None and clients.reset_all(node=self._node()) > 0

    def _client_pause(self) -> bool:
        """A client's process stands still, mostly for longer than its session: a zombie."""
        living = [process for process in self.world.processes if process.alive]
        if not living:
            return False
        process = self.rng.choice(living)
        until_s = self.world.now + 0.3 + self.rng.random() * 3.0
        process.paused_until_s = max(until_s, process.paused_until_s)
        return True

    def _eio(self) -> bool:
        """Counted when it happens: there must be something to sync."""
        node = self.world.nodes[self._node()]
        if node.alive:
            node.fail_sync()
        return False

    def _disk_full(self) -> bool:
        """Counted when something is written."""
        node = self.world.nodes[self._node()]
        if node.alive:
            node.fill_disk()
        return False

    def _one_way_cut(self) -> bool:
        pair = self._pair()
        if pair is not None:
            self.world.net.block(*pair, self.rng.random() * 2.0)
        return pair is not None

    def _clock_rate(self) -> bool:
        node = self.world.nodes[self._node()]
        node.set_clock_rate(0.93 + self.rng.random() * 0.14)
        return True

    def _transfer(self) -> bool:
        for node in self.world.nodes:
            if node.alive and node.leads and len(self.world.nodes) > 1:
                node.transfer_leadership()
                return True
        return False

    def _slow_sync(self) -> bool:
        node = self.world.nodes[self._node()]
        node.sync_stalled_until_s = self.world.now + 0.3 + self.rng.random() * 1.5
        return node.alive

    def _pause(self) -> bool:
        """Stop the process for a while (SIGSTOP, a long collection): what comes meanwhile waits."""
        node = self.world.nodes[self._node()]
        until_s = self.world.now + 0.1 + self.rng.random() * 1.2
        node.paused_until_s = max(until_s, node.paused_until_s)
        return node.alive

    def _write_stall(self) -> bool:
        """The database asks to wait (RocksDB's Incomplete), for some turns."""
        node = self.world.nodes[self._node()]
        if node.alive:
            node.stall_writes(self.rng.randint(1, 30))
        return node.alive

    def _bulk_reconnect(self) -> bool:
        """The bulk connection alone breaks: nobody counts that as silence."""
        pair = self._pair()
        if pair is not None:
            self.world.net.reconnect_bulk(*pair)
        return pair is not None

    def _dead_bulk(self) -> bool:
        """A bulk connection that is up carries nothing for seconds. Counted by lost frame."""
        pair = self._pair()
        if pair is not None:
            self.world.net.kill_bulk(*pair, 0.5 + 3.0 * self.rng.random())
        return False

    def _garbage(self) -> bool:
        """A peer that has said hello well sends what is no frame. Counted when it arrives."""
        pair = self._pair()
        if pair is not None:
            garbage = bytes(self.rng.randrange(256) for _ in range(9))
            self.world.net.garble(*pair, "garbage", lambda _frame: garbage)
        return False

    def _flipped_bit(self) -> bool:
        """One bit of a frame has changed on its way, unnoticed by TCP. Counted when it arrives."""
        pair = self._pair()
        if pair is not None:
            at = self.rng.random()
            self.world.net.garble(*pair, "flipped_bit", lambda frame: flipped(frame, at))
        return False

    def _drain(self) -> bool:
        """SIGTERM, and the process ends half a second later."""
        number = self._node()
        node = self.world.nodes[number]
        if node.alive:
            node.drain()
            self.world.schedule(0.5, self._stop, number, node.incarnation)
        return node.alive

    def _stop(self, number: int, life: int) -> None:
        if self.world.nodes[number].incarnation == life and self.world.now < self.until_s:
            self.world.crash(number, power_cut=False)

    def _replace(self) -> bool:
        return self._operator.replace(self._node())

    def _wipe(self) -> bool:
        """A disk is lost and `muster init` is run again; often another node goes down just then.

        Whoever was never started is started now: it does not know whom it should miss.
        """
        nodes = self.world.nodes
        wiped, gone = self.rng.sample(range(len(nodes)), 2)
        if not nodes[wiped].alive or not self._operator.wipe(wiped):
            return False
        if self.rng.random() < 0.7:
            self.world.crash(gone, power_cut=True, down_s=2.5)
            self.world.start_late()
        return True

    def _lost_tail(self) -> bool:
        """The disk forgets the end of what it had synced. Counted when it happens."""
        return self._operator.forget(self._node(), 0.02 + 0.4 * self.rng.random(), "lost_tail")

    def _older_copy(self) -> bool:
        """A node is started on an older copy of its directory. Counted when it happens."""
        return self._operator.forget(self._node(), 0.5 + 2.5 * self.rng.random(), "older_copy")

    def _forget_then_crash(self) -> bool:
        """A follower forgets what it acknowledged while others lag, and then the leader dies."""
        pair = self._lag_behind()
        return pair is not None and self._operator.forget(
            pair[1], LAG_S, "forget_then_crash", pair[0]
        )

    def _replace_then_crash(self) -> bool:
        """A follower that acknowledged is wiped while others lag, and then the leader dies."""
        pair = self._lag_behind()
        if pair is not None:
            self.world.schedule(LAG_S, self._lose_both, *pair)
        return pair is not None

    def _lag_behind(self) -> tuple[int, int] | None:
        """Let half of the followers miss what a leader sends; the leader, and one that does not."""
        nodes = range(len(self.world.nodes))
        leader = next((n for n in nodes if self.world.nodes[n].leads), None)
        if leader is None or len(nodes) == 1:
            return None
        others = self.rng.sample([n for n in nodes if n != leader], len(nodes) - 1)
        for lagging in others[: len(nodes) // 2]:
            self.world.net.block(leader, lagging, LAG_S + 0.05)
        return leader, others[-1]

    def _replace_again(self) -> bool:
        """One node loses its disk twice; then, while it leads, another one does. A step each time.

        The last one reads of both losses, and the leader lives in the store that is named later.
        """
        nodes = self.world.nodes
        first = self._lost[0] if self._lost else self._node()
        if len(self._lost) < 2:
            number = first
        elif nodes[first].alive and nodes[first].leads:
            number = self.rng.choice([n for n in range(len(nodes)) if n != first])
        else:
            for node in nodes:
                if node.alive and node.leads:
                    node.transfer_leadership(first)
            return False
        if not self._operator.replace(number):
            return False
        self._lost = [*self._lost, number] if len(self._lost) < 2 else []
        return True

    def _newcomer_away(self) -> bool:
        """A new node goes down amid its admission; when the others are done, a disk of theirs goes.

        The newcomer comes back then, and does not know that it was admitted.
        """
        nodes = range(len(self.world.nodes))
        leader = next((n for n in nodes if self.world.nodes[n].leads), None)
        if leader is None:
            return False
        newcomer, third = self.rng.sample([n for n in nodes if n != leader], 2)
        if not self._operator.replace(newcomer):
            return False
        self._await_announcement(newcomer, self.rng.choice([leader, leader, third]))
        return True

    def _await_announcement(self, newcomer: int, next_lost: int) -> None:
        if self.world.now >= self.until_s:
            return
        if self.world.nodes[newcomer].is_being_admitted:
            self.world.schedule(0.03 * self.rng.random(), self._turn_off, newcomer, next_lost)
        else:
            self.world.schedule(0.003, self._await_announcement, newcomer, next_lost)

    def _turn_off(self, newcomer: int, next_lost: int) -> None:
        if self.world.now < self.until_s:
            self.world.crash(newcomer, power_cut=self.rng.random() < 0.5, down_s=1.5)
            self.world.schedule(0.5 + 0.9 * self.rng.random(), self._replace_early, next_lost)

    def _replace_early(self, number: int) -> None:
        if self.world.now < self.until_s and self._operator.replace_early(number):
            self.counts["lost_meanwhile"] += 1

    def _lose_both(self, leader: int, wiped: int) -> None:
        if self.world.now < self.until_s and self._operator.replace(wiped):
            self.world.crash(leader, power_cut=True, down_s=2.5)


def flipped(frame: bytes, at: float) -> bytes:
    """`frame` with another bit at `at`, from 0 to below 1."""
    bit = int(at * 8 * len(frame))
    damaged = bytearray(frame)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)
