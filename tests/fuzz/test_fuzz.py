"""The hunt finds what is broken, says which input it was, and takes what is sound."""

import json

import pytest

from muster.tasks import task_store
from musterd.export import layout
from musterd.raft import codec, log_format
from musterd.replay import checks
from tests.fuzz import client_port
from tests.fuzz.decoders import CORPUS, DECODERS, KIB
from tests.fuzz.hunt import HELD_S, hunt, hunt_here, input_of, run_one
from tests.fuzz.planted import PLANTED

BY_NAME = {one.name: one for one in (*DECODERS, *PLANTED)}
CORPUS_BYTES_MAX = 128 * KIB
SAYS = {
    "raises": "KeyError",
    "ends": "ended it: -11",
    "exits": "SystemExit",
    "holds": "held the process",
    "takes_much": "allocated",
    "takes_all": "MemoryError",
}


@pytest.mark.fuzz
@pytest.mark.parametrize("name", [one.name for one in PLANTED])
def test_a_broken_decoder_is_found_with_its_input(tmp_path, name):
    """In a process of its own, which one input may end or hold."""
    inputs, held_s = (150, 1.5) if name == "holds" else (500, HELD_S)
    _, faults = hunt(BY_NAME[name], 7, inputs, 100.0, tmp_path, held_s=held_s)
    assert faults
    assert SAYS[name] in faults[0].what
    again = input_of(BY_NAME[name], 7, faults[0].number, [])
    assert again.hex() == faults[0].data


@pytest.mark.fuzz
def test_a_hunt_goes_on_behind_an_input_that_ends_the_process(tmp_path):
    """All inputs are run, and each that ends it is named."""
    count, faults = hunt(BY_NAME["ends"], 1, 300, 100.0, tmp_path)
    assert count == 300
    assert len({one.number for one in faults}) == len(faults) > 1


def _trusting(*_args):
    """A check that is not there."""


def _unchecked(one):
    fields = json.loads(one.metadata)
    return task_store.Definition(fields["name"], fields["config"], one.offset, fields["since"])


@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("decoder", "owner", "attribute", "broken"),
    [
        ("export_manifest", layout, "_check_types", _trusting),
        ("task_definition", task_store, "decode", _unchecked),
        ("journal", log_format, "unpacked", lambda form, value, _what: form.unpack(value)),
        ("export_segment", checks, "UnknownFormatError", ZeroDivisionError),
        ("peer_frame", codec, "DecodeError", ZeroDivisionError),
    ],
)
def test_a_shipped_decoder_that_lacks_a_check_is_found(
    monkeypatch, decoder, owner, attribute, broken
):
    """A few thousand inputs show it."""
    monkeypatch.setattr(owner, attribute, broken)
    _, faults = hunt_here(BY_NAME[decoder], 3, iter(range(4_000)))
    assert faults


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda one: one.name)
def test_each_input_of_the_corpus_is_sound_and_stays_within_the_bound(decoder):
    """A corpus that is refused at the first byte reaches nothing."""
    corpus = decoder.corpus()
    assert corpus
    for data in corpus:
        whole = decoder.whole(data)
        assert not run_one(decoder, whole, measured=True)
        decoder.decode(whole)


def test_the_corpus_is_small():
    """It is kept in the repository."""
    assert sum(file.stat().st_size for file in CORPUS.iterdir()) < CORPUS_BYTES_MAX
    assert {file.stem for file in CORPUS.iterdir()} == {one.name for one in DECODERS}


def test_an_input_is_the_same_each_time():
    """By seed and number."""
    for decoder in DECODERS:
        corpus = decoder.corpus()
        assert input_of(decoder, 5, 999, corpus) == input_of(decoder, 5, 999, corpus)
        assert len({input_of(decoder, 5, number, corpus) for number in range(200)}) > 50


def test_every_rpc_of_every_proto_is_asked():
    """Within a short hunt."""
    drawn = {client_port.path_of(client_port.request_of(1, number)[0]) for number in range(1_000)}
    assert drawn == {client_port.path_of(method) for method in client_port.methods()}


def test_an_error_in_a_nodes_log_is_seen(tmp_path):
    """A line that no request may cause."""
    log = tmp_path / "log"
    log.write_text('{"level": "info"}\n{"level": "error", "event": "x"}\n')
    assert client_port.errors_in(log) == ['{"level": "error", "event": "x"}']
