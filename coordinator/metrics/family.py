"""Families of samples in Prometheus' text format 0.0.4.

prometheus_client writes the same and loads a web server and a client with it, 3 MiB of each node's
memory; tests hold the two against each other.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Literal

Kind = Literal["counter", "gauge", "histogram"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
SLICE_SAMPLES: Final = 100
"""Lines encoded at a time: well under 1 ms."""

_HELP: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})
_LABEL: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class Metric:
    """A family: its name, its kind, its help, and its samples."""

    __slots__ = ("help", "kind", "labels", "name", "samples")

    def __init__(self, name: str, kind: Kind, text: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.kind = kind
        self.help = text
        self.labels = tuple(labels)
        self.samples: list[tuple[str, Sequence[str], float]] = []
        """What follows the family's name, the values of its labels and then of "le", the number."""

    def pieces(self) -> Iterator[bytes]:
        """The family as it stands on the page, SLICE_SAMPLES lines at a time."""
        head = f"# HELP {self.name} {self.help.translate(_HELP)}\n# TYPE {self.name} {self.kind}\n"
        for start in range(0, max(1, len(self.samples)), SLICE_SAMPLES):
            piece = self.samples[start : start + SLICE_SAMPLES]
            yield (head + "".join([self._line(*sample) for sample in piece])).encode()
            head = ""

    def _line(self, suffix: str, values: Sequence[str], number: float) -> str:
        if not values:
            return f"{self.name}{suffix} {float(number)!r}\n"
        labels = sorted(zip((*self.labels, "le"), values, strict=False))
        told = ",".join([f'{label}="{value.translate(_LABEL)}"' for label, value in labels])
        return f"{self.name}{suffix}{{{told}}} {float(number)!r}\n"

    def _check(self, values: Sequence[str]) -> None:
        if len(values) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, not {len(values)}")


class Values(Metric):
    """A family of counters or of gauges."""

    __slots__ = ()

    def add_metric(self, labels: Sequence[str], value: float) -> None:
        """Add one sample. `labels`: a value for each label of the family."""
        self._check(labels)
        self.samples.append(("", labels, value))


class Histograms(Metric):
    """A family of histograms."""

    __slots__ = ()

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, "histogram", text, labels)

    def add_metric(
        self, labels: Sequence[str], buckets: Sequence[tuple[str, float]], total: float
    ) -> None:
        """Add one histogram: its buckets as `Histogram.cumulative` has them, and its sum."""
        self._check(labels)
        self.samples += [("_bucket", (*labels, bound), count) for bound, count in buckets]
        self.samples.append(("_count", labels, buckets[-1][1]))
        self.samples.append(("_sum", labels, total))
