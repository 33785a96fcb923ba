"""The CPU of a call is what the clocks say, split by samples of the time at work alone."""

import json
import os
import signal
from pathlib import Path

import pytest

from bench.cpu.layers import (
    GRPC_AIO,
    GRPC_THREADS,
    OTHER,
    OTHER_THREADS,
    PROTOBUF,
    STORAGE,
    SYNC,
    layer_of_call,
    layer_of_module,
    layer_of_thread,
)
from bench.cpu.sampler import sampled
from bench.cpu.split import Clocks, Split, Watched, mean, measure, read, split, table
from musterd.chaos.child import Child
from musterd.coordinator.host import tied_command

ROOT = Path(__file__).parents[2]
MAIN, SYNCER, POLLER, ENDED = 10, 11, 12, 13
BEFORE = Clocks(5.0, {MAIN: 4.0, SYNCER: 0.5, ENDED: 0.5}, {})
TOLD = {
    "samples": [["raft", "a", 30], ["runtime", "b", 10]],
    "threads": {str(MAIN): "MainThread", str(SYNCER): "store-sync"},
}


def test_the_layers_of_a_process_are_in_sum_what_its_clock_says() -> None:
    """The main thread by samples, other threads by name, threads that ended by what is missing."""
    after = Clocks(7.0, {MAIN: 5.0, SYNCER: 0.75, POLLER: 0.25}, {POLLER: "event_engine"})
    got = split(MAIN, BEFORE, after, 1000, TOLD)
    assert got.total_us == pytest.approx(2000)
    assert got.layers_us == pytest.approx(
        {"raft": 750, "runtime": 250, SYNC: 250, GRPC_THREADS: 250, OTHER_THREADS: 500}
    )
    assert got.places_us == pytest.approx({"a": 750, "b": 250})


def test_the_rounding_of_many_threads_adds_nothing_to_a_process() -> None:
    """Clocks of threads that say more than that of the process are scaled to it."""
    after = Clocks(6.0, {MAIN: 5.0, SYNCER: 1.5}, {})
    got = split(MAIN, BEFORE, after, 1000, TOLD)
    assert sum(got.layers_us.values()) == pytest.approx(got.total_us) == pytest.approx(1000)
    assert got.layers_us[SYNC] == pytest.approx(500)


@pytest.mark.parametrize(("calls", "samples"), [(0, TOLD["samples"]), (5, [])])
def test_no_calls_or_no_samples_are_an_error_and_not_a_table_of_zeros(calls, samples) -> None:
    """A sampler that was not told to begin must not read as free of cost."""
    after = Clocks(6.0, {MAIN: 5.0}, {})
    with pytest.raises(ValueError, match="nothing was measured"):
        split(MAIN, BEFORE, after, calls, TOLD | {"samples": samples})


def test_every_module_of_server_and_sdk_has_a_layer() -> None:
    """So what is not known is little; a helper of the standard library is its caller's."""
    for folder, package in (
        *((name, f"musterd.{name}") for name in ("coordinator", "raft", "storage")),
        *((name, name) for name in ("muster", "bench")),
    ):
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            name = ".".join((package, *parts)).removesuffix(".__init__")
            assert layer_of_module(name), name
    assert layer_of_module("collections") is None
    assert layer_of_module("rafting") is None


def test_c_code_has_the_layer_of_the_call_that_runs_it() -> None:
    """Protobuf by what is called, grpc.aio by the loop's own call; nothing else is guessed."""
    assert layer_of_call("musterd.raft.codec", "request.SerializeToString()") == PROTOBUF
    assert layer_of_call("asyncio.events", "self._context.run(self._callback)") == GRPC_AIO
    assert layer_of_call("musterd.raft.codec", "len(request)") is None
    assert layer_of_call("musterd.raft.codec", "") is None


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("store-sync", SYNC),
        ("rocksdb:low", STORAGE),
        ("event_engine", GRPC_THREADS),
        ("Thread-1 (_poll_wrapper)", GRPC_THREADS),
        ("asyncio_0", OTHER_THREADS),
    ],
)
def test_a_thread_has_one_layer_by_its_name(name, layer) -> None:
    """Python's name of it, or the kernel's."""
    assert layer_of_thread(name) == layer


def test_followers_are_one_column_and_a_column_ends_with_its_sum() -> None:
    """Their mean, layer by layer; a layer that one lacks counts as nothing."""
    both = mean([Split(30, {"raft": 20, "x": 10}, {"a": 4}), Split(10, {"raft": 10}, {})])
    assert both == Split(20, {"raft": 15, "x": 5}, {"a": 2})
    lines = table({"leader": Split(7, {"x": 7}), "follower": both})
    assert [line.split() for line in lines] == [
        ["leader", "follower"],
        ["raft", "0.0", "15.0"],
        ["x", "7.0", "5.0"],
        ["sum", "7.0", "20.0"],
    ]


@pytest.fixture
def echo(tmp_path):
    """A real echo and its client, both under the sampler."""
    server = Child(
        "bench.echo_server", {}, wrap=lambda argv: tied_command(sampled(argv, tmp_path / "server"))
    )
    config = {"echo": server.ready()["endpoint"]}
    client = Child(
        "bench.commit_client",
        config,
        wrap=lambda argv: tied_command(sampled(argv, tmp_path / "client")),
    )
    client.ready()
    yield server, client
    client.close()
    server.close()


@pytest.mark.processes
def test_samples_are_of_the_time_at_work_and_not_of_the_start(echo, tmp_path) -> None:
    """No import and no compilation is in them, and a tenth at most has no layer."""
    server, client = echo
    watched = {
        "server": [Watched(server.pid, tmp_path / "server")],
        "client": [Watched(client.pid, tmp_path / "client")],
    }
    got = measure(watched, lambda: client.ask("closed", in_flight=16, seconds=1.0)["acknowledged"])
    for (one,) in got.values():
        assert one.total_us > 0
        assert sum(one.layers_us.values()) == pytest.approx(one.total_us)
        assert one.layers_us.get(OTHER, 0.0) < one.total_us / 10
        assert one.layers_us[GRPC_AIO] > 0
        assert not [place for place in one.places_us if "importlib" in place]
    assert any("bench.commit_client:" in place for place in got["client"][0].places_us)


@pytest.mark.processes
def test_a_process_under_the_sampler_is_counted_only_while_it_is_told_to(echo, tmp_path) -> None:
    """Work before the first signal leaves nothing, and the process goes on after the second."""
    server, client = echo
    client.ask("closed", in_flight=16, seconds=0.5)
    os.kill(client.pid, signal.SIGUSR1)
    os.kill(client.pid, signal.SIGUSR2)
    told = read(Watched(client.pid, tmp_path / "client"))
    assert sum(number for _, _, number in told["samples"]) <= 1
    assert client.ask("closed", in_flight=1, seconds=0.1)["acknowledged"] > 0
    assert not (tmp_path / "server").exists()
    assert json.loads((tmp_path / "client").read_text()) == told
    assert server.process.poll() is None
