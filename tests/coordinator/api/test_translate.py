"""Requests become commands, and replies responses."""

from muster.v1 import group_pb2 as pb
from musterd.coordinator.api.rpcs import translate
from musterd.coordinator.machine.commit_events import StoredResults


def test_results_that_are_all_stored_are_encoded_as_any_others_are():
    """Whether their parts are known or made, and whoever was told before."""
    for refs in ((("t", 0), ("größe", 1_000)), (("t", 0), ("u", 3)), (("t", 1),)) * 2:
        results = StoredResults(refs)
        encoded = translate.stored(results)
        assert encoded == translate.committed(results).SerializeToString()
        told = pb.OffsetCommitResponse.FromString(encoded)
        assert [(one.topic, one.partition) for one in told.partitions] == list(refs)


def test_parts_of_answers_that_are_kept_have_a_bound(monkeypatch):
    """A node that has served all partitions of a cluster does not hold an answer for each."""
    monkeypatch.setattr(translate, "STORED_MAX", 8)
    translate._STORED.clear()
    for partition in range(100):
        translate.stored(StoredResults((("t", partition),)))
        assert len(translate._STORED) <= 8
