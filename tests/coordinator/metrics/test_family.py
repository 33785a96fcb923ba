"""The text of the metrics page: what prometheus_client writes of the same samples."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.parser import text_string_to_metric_families

from musterd.coordinator.metrics.family import SLICE_SAMPLES, Histograms, Values
from musterd.coordinator.metrics.histogram import Histogram
from musterd.coordinator.metrics.process import ProcessMeter

TEXT = st.text(max_size=8) | st.sampled_from(['a"b', "a\\b", "a\nb", "{x}", ""])
NUMBERS = st.floats(0, 1_000_000, exclude_max=True) | st.integers(0, 999_999) | st.booleans()


class Registry:
    """A registry of one family."""

    def __init__(self, family):
        self.collect = lambda: [family]


def theirs(family):
    return generate_latest(Registry(family))


def ours(family):
    return b"".join(family.pieces())


def read(text):
    [family] = text_string_to_metric_families(text.decode())
    return [(sample.name, sample.labels, sample.value) for sample in family.samples]


@given(help_=TEXT, samples=st.lists(st.tuples(TEXT, TEXT, NUMBERS), max_size=5))
def test_counters_and_gauges_are_written_as_prometheus_client_writes_them(help_, samples):
    """Whatever labels and help have in them, byte for byte."""
    labels = ["shard", "peer"]
    for kind, family in (
        ("counter", CounterMetricFamily("x_total", help_, labels=labels)),
        ("gauge", GaugeMetricFamily("x_total", help_, labels=labels)),
    ):
        own = Values("x_total", kind, help_, labels)
        for shard, peer, value in samples:
            own.add_metric([shard, peer], value)
            family.add_metric([shard, peer], value)
        assert ours(own) == theirs(family)


@given(values=st.lists(st.floats(0, 99), max_size=20), label=TEXT)
def test_a_histogram_is_written_as_prometheus_client_writes_it(values, label):
    """Buckets, count and sum, byte for byte."""
    counted = Histogram()
    for value in values:
        counted.observe(value)
    own = Histograms("x_seconds", "How long.", ["zone"])
    family = HistogramMetricFamily("x_seconds", "How long.", labels=["zone"])
    for one in (own, family):
        one.add_metric([label], counted.cumulative(), counted.total)
    assert ours(own) == theirs(family)


@pytest.mark.parametrize("value", [1e6, 123_456_789, 2**62, 1e300, float("inf"), -1.5, 1e-9])
def test_large_and_odd_numbers_are_read_as_what_they_are(value):
    """prometheus_client writes Go's exponents; a parser reads either."""
    own = Values("x", "gauge", "X.")
    own.add_metric([], value)
    assert read(ours(own)) == [("x", {}, value)]


def test_a_sample_without_one_of_its_labels_is_an_error():
    """It would be another series."""
    with pytest.raises(ValueError, match="labels"):
        Values("x", "gauge", "X.", ["shard", "peer"]).add_metric(["0"], 1)


@pytest.mark.parametrize("samples", [0, 1, SLICE_SAMPLES, SLICE_SAMPLES + 1, 1_000])
def test_a_family_in_pieces_is_the_same_family(samples):
    """Every sample once, one HELP and one TYPE, whatever the size."""
    own = Values("x", "gauge", "X.", ["n"])
    for number in range(samples):
        own.add_metric([str(number)], number)
    pieces = list(own.pieces())
    assert len(pieces) == max(1, -(-samples // SLICE_SAMPLES))
    text = b"".join(pieces)
    assert text.count(b"# ") == 2
    assert [labels["n"] for _, labels, _ in read(text)] == [str(n) for n in range(samples)]


def test_the_process_is_measured_as_prometheus_client_measures_it():
    """The same names and kinds, and values that are as near as two looks can be."""
    meant = {family.name: family for family in ProcessCollector(registry=None).collect()}
    own = {}
    for family in ProcessMeter().families():
        [parsed] = text_string_to_metric_families(ours(family).decode())
        own[parsed.name] = parsed
    assert set(own) == set(meant)
    for name, family in meant.items():
        assert own[name].type == family.type, name
        [[sample], [wanted]] = own[name].samples, family.samples
        assert sample.name == wanted.name
        assert sample.value == pytest.approx(wanted.value, rel=0.1, abs=2), name
