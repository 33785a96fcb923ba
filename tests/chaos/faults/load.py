"""Commits of rising offsets to a few groups, from a thread each, and what was acknowledged."""

import contextlib
import threading
import time

import grpc

from muster.v1 import errors_pb2, group_pb2, group_pb2_grpc

TOPIC = "t"
CALL_S = 1.0
READ_S = 30.0
PAUSE_S = 0.005


class Load:
    """As a context manager: inside the block commits go on."""

    def __init__(self, endpoints, groups=4):
        options = [
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.min_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 300),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        self._channels = [grpc.insecure_channel(one, options=options) for one in endpoints]
        self._stubs = [group_pb2_grpc.GroupCoordinatorStub(one) for one in self._channels]
        self.acknowledged = {f"g{number}": 0 for number in range(groups)}
        self.by_node = [0] * len(endpoints)
        self.last_by_node = [0.0] * len(endpoints)
        """When a commit that this node acknowledged was sent, monotonic seconds."""
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._commit_all, args=(group,)) for group in self.acknowledged
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop()
        for channel in self._channels:
            channel.close()

    def stop(self):
        """No commit is under way any more."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def total(self):
        return sum(self.acknowledged.values())

    def wait_progress(self, timeout_s=30.0):
        """Until every group has two more acknowledged commits than now."""
        before = dict(self.acknowledged)
        deadline = time.monotonic() + timeout_s
        while any(self.acknowledged[group] < before[group] + 2 for group in before):
            assert time.monotonic() < deadline, (before, self.acknowledged)
            time.sleep(0.01)

    def lost(self):
        """Group -> (acknowledged, read) where less is read than was acknowledged."""
        found = {group: (most, self._read(group)) for group, most in self.acknowledged.items()}
        return {group: pair for group, pair in found.items() if pair[1] < pair[0]}

    def _commit_all(self, group):
        offset, at = 0, 0
        while not self._stop.is_set():
            offset += 1
            request = group_pb2.OffsetCommitRequest(group_id=group, generation=-1)
            request.partitions.add(topic=TOPIC, partition=0, offset=offset)
            done = False
            began = time.monotonic()
            with contextlib.suppress(grpc.RpcError):
                answer = self._stubs[at].OffsetCommit(request, timeout=CALL_S)
                done = _fine(answer)
            if done:
                self.acknowledged[group] = offset
                self.by_node[at] += 1
                self.last_by_node[at] = max(self.last_by_node[at], began)
            else:
                at = (at + 1) % len(self._stubs)
            self._stop.wait(PAUSE_S)

    def _read(self, group):
        request = group_pb2.OffsetFetchRequest(group_id=group)
        request.partitions.add(topic=TOPIC, partition=0)
        deadline = time.monotonic() + READ_S
        while time.monotonic() < deadline:
            for stub in self._stubs:
                with contextlib.suppress(grpc.RpcError):
                    answer = stub.OffsetFetch(request, timeout=CALL_S)
                    if _fine(answer):
                        return answer.partitions[0].offset
            time.sleep(0.02)
        raise AssertionError(f"{group} cannot be read")


def _fine(answer):
    """Taken, and its one partition, too."""
    told = [one.status for one in answer.partitions if hasattr(one, "status")]
    return all(one.code == errors_pb2.NONE for one in [answer.status, *told])
