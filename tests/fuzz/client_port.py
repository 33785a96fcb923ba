"""The client port of a real node: requests of every RPC, sound to the outside and changed inside.

What a request is refused with does not matter. That the node answers each with a declared status
does, that it goes on, logs no error, and stays below its memory.
"""

import asyncio
import contextlib
import importlib
import pkgutil
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

import muster.v1
from muster.net.streams import METHODS
from muster.v1.group_pb2 import ClientFrame
from musterd.coordinator.node.launcher import Cluster
from tests.fuzz.hunt import FAULTS_MAX, Fault
from tests.fuzz.mutation import changed_bytes, changed_wire, filled, grown_wire

NAME = "client_request"
SHARE = 2
AT_ONCE = 48
CALL_S = 0.4
"""A call that is parked is given up after so long."""
HELD_S = 60.0
RESIDENT_BYTES_MAX = 1024 * 1024 * 1024
"""Of a node whose limits of state are below this."""
LONG_BYTES = 1_600_000
"""One byte more than a request may have is refused by gRPC."""
DECLARED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
}
UNREADABLE = "parsing message"
"""What is no protobuf is answered UNKNOWN with protobuf's own words."""


def methods() -> list[MethodDescriptor]:
    """Every RPC of every service of every proto."""
    found = []
    for module in pkgutil.iter_modules(muster.v1.__path__):
        if module.name.endswith("_pb2"):
            services = importlib.import_module(f"muster.v1.{module.name}").DESCRIPTOR
            for service in services.services_by_name.values():
                found += service.methods
    return found


def request_of(seed: int, number: int) -> tuple[MethodDescriptor, bytes]:
    """The call with this number."""
    rng = Random(f"{NAME} {seed} {number}")
    method = rng.choice(methods())
    message = filled(rng, empty(method))
    if isinstance(message, ClientFrame) and rng.random() < 0.8:
        message = framed(rng)
    data = message.SerializePartialToString()
    chance = rng.random()
    if chance < 0.005:
        return method, grown_wire(rng, data, rng.randrange(10_000, LONG_BYTES))
    if chance < 0.4:
        return method, data
    if chance < 0.5:
        return method, changed_bytes(rng, data)
    return method, changed_wire(rng, data)


def framed(rng: Random) -> ClientFrame:
    """A frame of requests of the stream's other methods, most of them with ids of their own."""
    frame = ClientFrame(ping=rng.random() < 0.2)
    others = [one for one in methods() if path_of(one) in METHODS]
    for call_id in range(rng.randrange(1, 20)):
        method = rng.choice(others)
        frame.requests.add(
            call_id=call_id if rng.random() < 0.99 else 0,
            method=METHODS[path_of(method)],
            message=filled(rng, empty(method)).SerializePartialToString(),
        )
    return frame


def empty(method: MethodDescriptor) -> Message:
    """A request of this RPC."""
    message: Message = method.input_type._concrete_class()
    return message


def path_of(method: MethodDescriptor) -> str:
    """As gRPC names it."""
    return f"/{method.containing_service.full_name}/{method.name}"


async def _call(channel: grpc.aio.Channel, method: MethodDescriptor, data: bytes) -> str:
    """What is wrong with the answer; nothing where all is well."""
    stream = method.server_streaming
    call = (channel.unary_stream if stream else channel.unary_unary)(path_of(method))
    try:
        if stream:
            async for _ in call(data, timeout=CALL_S):
                pass
        else:
            await call(data, timeout=CALL_S)
    except grpc.aio.AioRpcError as error:
        said = error.details() or ""
        is_frame = method.client_streaming and error.code() is grpc.StatusCode.INVALID_ARGUMENT
        if error.code() in DECLARED or UNREADABLE in said or is_frame:
            return ""
        return f"{error.code()}: {said}"[:300]
    return ""


async def _calls(endpoint: str, seed: int, numbers: Iterator[int]) -> tuple[int, list[Fault]]:
    faults: list[Fault] = []
    count = 0
    options = [("grpc.max_send_message_length", -1), ("grpc.enable_retries", 0)]

    async def one_after_another() -> None:
        nonlocal count
        async with grpc.aio.insecure_channel(endpoint, options) as channel:
            for number in numbers:
                method, data = request_of(seed, number)
                what = await asyncio.wait_for(_call(channel, method, data), HELD_S)
                count += 1
                if what:
                    at = f"{path_of(method)} {data[:2000].hex()}"
                    faults.append(Fault(NAME, number, what, at))
                if len(faults) >= FAULTS_MAX:
                    return

    await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))
    return count, faults


def hunt(seed: int, inputs: int, seconds: float, folder: Path) -> tuple[int, list[Fault]]:
    """Send so many requests to a node of its own, or as many as so many seconds allow."""
    end = time.monotonic() + seconds

    def numbers() -> Iterator[int]:
        for number in range(inputs):
            if number and time.monotonic() > end:
                return
            yield number

    with Cluster(folder / "node", nodes=1, shards=2, flags=("--log-level=warning",)) as cluster:
        cluster.wait_ready()
        node = cluster.nodes[0]
        count, faults = asyncio.run(_calls(node.endpoint, seed, numbers()))
        found = []
        if node.running:
            status = Path(f"/proc/{node.pid}/status").read_text("ascii")
            resident = next(line for line in status.splitlines() if line.startswith("VmHWM"))
            kib = int(resident.split()[1])
            if kib * 1024 > RESIDENT_BYTES_MAX:
                found.append(f"the node took {kib} KiB")
            with contextlib.suppress(TimeoutError):
                again, _ = asyncio.run(_calls(node.endpoint, seed, iter(range(1))))
                found += [] if again else ["the node answers no more"]
        else:
            found.append(f"the node ended: {node.started.returncode}\n{node.log_tail()}")
        found += errors_in(node.log_path)
    faults += [Fault(NAME, -1, what, "") for what in found]
    return count, faults


def errors_in(log: Path) -> list[str]:
    """Lines of a node's log that no request may cause."""
    lines = log.read_text("utf-8", errors="replace").splitlines()
    wrong = ("Traceback", '"level": "error"', '"level": "critical"', "exception")
    return [line[:2000] for line in lines if any(one in line for one in wrong)][:FAULTS_MAX]
