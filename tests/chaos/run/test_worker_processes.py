"""Processes that are disturbed come back, also where the disturbing ends meanwhile."""

import io
import random
from types import SimpleNamespace

from musterd.chaos.run.worker_processes import WorkerProcesses
from musterd.chaos.workloads.catalog import Disturbance, Job

AT_ONCE = Disturbance("restart", (0.0, 0.0), (0.0, 0.0))


class Process:
    """A child that ends when the test says so."""

    def __init__(self):
        self.sent, self.code, self.answers = [], None, []
        self.process = SimpleNamespace(poll=lambda: self.code)

    def send(self, verb, **_):
        self.sent.append(verb)
        self.answers.append({verb: True})

    def read(self, _timeout_s):
        return self.answers.pop(0)

    def ready(self, _timeout_s):
        return {}

    def close(self):
        self.process = None


class Rehearsed(WorkerProcesses):
    """Its processes are `Process`es, the newest one last in `lives`."""

    def __init__(self, folder):
        cluster = SimpleNamespace(hosts=1, secure=False)
        super().__init__(folder, cluster, 1, SimpleNamespace(record=lambda _: None))
        self._rng = random.Random(1)
        self.lives = []
        self.streams = []

    def _start(self, one):
        one.lives += 1
        self.streams.append((one.job.name, one.streams))
        one.child, one.state, one.due_s = Process(), "up", None
        one.log = io.StringIO()
        self.lives.append(one.child)


def test_a_process_makes_its_calls_as_the_one_before_it_did(tmp_path):
    """A soak counts what nodes have for them: it is the same before and after a death."""
    workers = Rehearsed(tmp_path)
    names = [f"soak-{number}" for number in range(8)]
    workers.start([Job(name, "members", {}, AT_ONCE) for name in names])
    begun = dict(workers.streams)
    assert [name for name in names if not begun[name]] == ["soak-3", "soak-7"]
    workers.disturbing = True
    while len(workers.streams) < 2 * len(names):
        for one in workers.lives:
            one.code = 0 if one.sent else None
        workers.tick()
    assert all(begun[name] == streams for name, streams in workers.streams)
    assert set(dict(workers.streams[len(names) :])) == set(names)


def being_restarted(tmp_path):
    """A workers of one that was told to end, and has not yet."""
    workers = Rehearsed(tmp_path)
    workers.start([Job("W5-static-0", "members", {}, AT_ONCE)])
    workers.disturbing = True
    while not workers.lives[0].sent:
        workers.tick()
    return workers


def test_a_process_that_is_ending_is_told_so_once(tmp_path):
    """However long it takes: its last moment stays where it is."""
    workers = being_restarted(tmp_path)
    until_s = workers._all[0].until_s
    for _ in range(5):
        workers.tick()
    assert workers.lives[0].sent == ["end"]
    assert workers._all[0].until_s == until_s


def test_a_process_that_was_ending_when_calm_was_asked_for_comes_back(tmp_path):
    """It was waited for in vain, and the run failed for it."""
    workers = being_restarted(tmp_path)
    workers.disturbing = False
    workers.tick()
    workers.lives[0].code = 0
    assert workers.calm(5.0)
    assert [one.sent for one in workers.lives] == [["end"], ["calm"]]
