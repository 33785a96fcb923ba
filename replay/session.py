"""The Spark session that a replay uses.

Connect, what `spark-submit` gave us, or one on this machine.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from musterd.replay.java import SCRUBBED, ensure

ARROW_BATCH_ROWS = 20_000
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties").as_uri()
"""Errors alone: Spark warns of what is normal on one machine."""
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def start_session(
    remote: str | None = None, *, quick: bool = True, shuffle_partitions: int | None = None
) -> SparkSession:
    """A session for replay: on this machine, unless `remote` or `spark-submit` says where.

    `quick`: a local JVM compiles cheaply and collects garbage on one thread, which halves the
    processor time of a small replay and slows down a big one. Raises `JavaNotFoundError`.
    """
    builder = SparkSession.builder.appName("muster replay")
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_BATCH_ROWS),
    }
    if remote is not None:
        return _configured(builder.remote(remote), settings).getOrCreate()
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # started by spark-submit: its settings stand
        return _configured(builder, settings).getOrCreate()
    cores = len(os.sched_getaffinity(0))
    settings |= {
        "spark.master": f"local[{cores}]",
        "spark.sql.shuffle.partitions": str(shuffle_partitions or 2 * cores),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    options = f"-Dlog4j2.configurationFile={LOG_SETTINGS}"
    settings["spark.driver.extraJavaOptions"] = f"{options} {QUICK_JVM}" if quick else options
    with _own_environment():
        return _configured(builder, settings).getOrCreate()


def _configured(builder: SparkSession.Builder, settings: dict[str, str]) -> SparkSession.Builder:
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder


@contextmanager
def _own_environment() -> Iterator[None]:
    """While the JVM starts: our Java and Python, and nothing that was meant for another Spark."""
    before = dict(os.environ)
    home = ensure()
    for name in SCRUBBED:
        os.environ.pop(name, None)
    os.environ |= {
        "JAVA_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONSAFEPATH": "1",  # its workers start where the user stands
    }
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
