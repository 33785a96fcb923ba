"""The layers that the CPU of a commit is split by: modules and threads."""

from typing import Final

GRPC_AIO: Final = "grpc.aio, with its C code"
GRPC_THREADS: Final = "grpc core, its threads"
PROTOBUF: Final = "protobuf"
LOOP: Final = "asyncio and sockets"
SYNC: Final = "journal, fsync"
STORAGE: Final = "storage"
OTHER: Final = "other"
OTHER_THREADS: Final = "other threads"

MODULES: Final = (
    ("musterd.coordinator.api.frame", "api frame"),
    ("musterd.coordinator.api.limits", "api limits"),
    ("musterd.coordinator.api.stream", "api stream"),
    ("musterd.coordinator.api", "api rpcs"),
    ("musterd.coordinator.machine.decide", "machine, decide"),
    ("musterd.coordinator.machine", "machine, evolve, records, digest"),
    ("musterd.coordinator.codec", "entry codec"),
    ("musterd.coordinator.runtime", "runtime"),
    ("musterd.coordinator", "node, metrics, integrity"),
    ("musterd.raft.journal", SYNC),
    ("musterd.raft.sync_watch", SYNC),
    ("musterd.raft", "raft"),
    ("pysyncobj", "raft"),
    ("musterd.storage", STORAGE),
    ("muster.v1", PROTOBUF),
    ("google", PROTOBUF),
    ("muster", "client SDK"),
    ("bench", "load generator"),
    ("musterd.chaos.child", "load generator"),
    ("grpc", GRPC_AIO),
    ("asyncio", LOOP),
    ("selectors", LOOP),
    ("socket", LOOP),
)
"""Module, or the package that it is in, and its layer; the first that fits. A helper of the
standard library is its caller's."""

CALLS: Final = (
    ("SerializeToString", PROTOBUF),
    ("FromString", PROTOBUF),
    ("MergeFrom", PROTOBUF),
    ("CopyFrom", PROTOBUF),
    ("ByteSize", PROTOBUF),
)
"""What the source of a call to C code has, and its layer."""

_RUN: Final = ("asyncio.events", "self._context.run")
"""The loop's own call of what is ready. Where no frame is above it, C code runs: grpc.aio's
coroutines and callbacks, and the steps of asyncio's tasks, which cannot be told apart."""


def layer_of_module(name: str) -> str | None:
    """The layer of a module by its dotted name; None for a helper, which is its caller's."""
    for prefix, layer in MODULES:
        if name == prefix or name.startswith(f"{prefix}."):
            return layer
    return None


def layer_of_call(module: str, call: str) -> str | None:
    """The layer of C code by the source of its call in a module; None: that of the module."""
    if module == _RUN[0] and call.startswith(_RUN[1]):
        return GRPC_AIO
    called = call.partition("(")[0]
    for mark, layer in CALLS:
        if called.endswith(mark):
            return layer
    return None


def layer_of_thread(name: str) -> str:
    """The layer of a thread that is not the main one, by Python's name of it or the kernel's."""
    if name == "store-sync":
        return SYNC
    if name.startswith("rocksdb"):
        return STORAGE
    if "poll_wrapper" in name or name.startswith(("grpc", "event_engine", "resolver", "timer")):
        return GRPC_THREADS
    return OTHER_THREADS
