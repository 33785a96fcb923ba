"""docs/errors.md is true: every case in it is run against a real cluster, which goes on."""

import importlib

import pytest

from muster.v1 import errors_pb2
from musterd.coordinator.machine.errors import Error
from tests.bad_input import document
from tests.bad_input.registry import BREAK_NODES, RUNNERS

for part in ("requests", "crowds", "ports", "nodes", "commands", "resets", "exports"):
    importlib.import_module(f"tests.bad_input.{part}")

TEXT = document.TARGET.read_text("utf-8")
CASES = document.cases(TEXT)


def test_the_document_is_the_generated_one():
    """A change of the table, of a number or of an exit code needs `make errors`."""
    assert document.document() == TEXT


def test_every_case_has_a_runner_and_every_runner_a_case():
    """Nothing is listed that is not run, and nothing run that is not listed."""
    assert RUNNERS.keys() == CASES.keys()
    assert len(CASES) > 100


def test_every_kafka_name_in_use_has_a_line():
    """A name that the sources answer or raise is explained; one that nothing answers is not."""
    explained = {entry["name"] for entry in document.source()["name"]}
    assert explained == document.names_in_use()
    for name in explained:
        assert f"| {name} | {errors_pb2.ErrorCode.Value(name)} |" in TEXT
        assert Error[name] == errors_pb2.ErrorCode.Value(name)


@pytest.mark.processes
@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=[pytest.mark.faults] * (one in BREAK_NODES)) for one in CASES],
)
def test_bad_input_gets_its_error_and_the_cluster_goes_on(world, name):
    """The answer, the text and the next step are the documented ones; then a commit succeeds."""
    said = CASES[name]
    try:
        seen = RUNNERS[name](world)
    finally:
        world.revive()
    for one in seen if isinstance(seen, list) else [seen]:
        assert one.answer == said["answer"], one
        assert document.matches(said["says"], one.text), one
        if one.next_step:
            assert document.matches(said["next"], one.next_step), one
    assert seen, "a runner that saw nothing proves nothing"
    world.commit_succeeds()
