"""The fold as a PySpark job. DataFrame APIs only, so that it runs under Spark Connect too.

The checks of files run on the executors, one task per file; the fold is one shuffle by (shard,
group), one sort inside each partition by (shard, group, index, sub), and `mapInArrow`, which
streams: memory holds one group. One very hot group cannot be split. Digests are added up per
(shard, mark) by Spark. The result equals the local engine's row for row
(tests/replay/test_engines.py).
"""

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's users write it

from musterd.export.layout import LATER_COLUMNS, Row
from musterd.export.parquet_files import COLUMNS, read_records
from musterd.replay.checks import Conflict, Overlap, compare, inspect, sound_overlaps, survey
from musterd.replay.digests import MODULUS, from_limbs, judge
from musterd.replay.fold import BASE_RECORD, fold_sorted, group_of
from musterd.replay.output import prepare
from musterd.replay.plan import Plan, Run, ShardPlan, make_plan
from musterd.replay.report import (
    Progress,
    Report,
    Suspicion,
    fold_findings,
    make_report,
    suspects,
    suspicions,
)
from musterd.replay.rows import groups_in
from musterd.replay.session import start_session
from musterd.replay.tables import (
    DIGEST_DELTAS,
    NAMES,
    SCHEMAS,
    TABLES,
    TALLIES,
    Emitted,
    Integrity,
    to_batch,
)

BATCH_ROWS = 8192
QUICK_BYTES = 64 * 1024 * 1024
"""A smaller input is read by a JVM that starts quickly rather than runs fast."""
TASKS_MAX = 64
"""Tasks of one round of checks.

Enough to keep a cluster busy, few enough to be cheap on two cores.
"""

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_DDL: dict[pa.DataType, str] = {
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.string(): "string",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    pa.timestamp("us", tz="UTC"): "timestamp",
}
_TABLE = "table"


def run_spark(
    source: Path,
    output: Path,
    *,
    prove: bool,
    say: Progress,
    remote: str | None = None,
    session: SparkSession | None = None,
) -> Report:
    """Replay `source` into tables under `output`, with `session` or one of its own.

    Raises `InputError` and `JavaNotFoundError`; what fails in the data is in the report.
    """
    source, output = source.resolve(), output.resolve()
    seen = survey(source)  # before a JVM is started for nothing
    prepare(output)
    size = sum(file.manifest.bytes for file in seen.files)
    spark = session or start_session(remote, quick=size < QUICK_BYTES)
    try:
        began = time.monotonic()
        say(f"checking {len(seen.files)} files")
        inspections = _spread(spark, inspect, seen.files)
        conflicts = _spread(spark, _compare, list(sound_overlaps(seen.files, inspections)))
        plan = make_plan(seen, inspections, [each for found in conflicts for each in found])
        findings = [*seen.findings, *(row for each in inspections for row in each.findings)]
        findings += plan.findings
        say(f"folding {len(plan.shards)} shards")
        folded = _fold(spark, plan, prove=prove).persist()
        counts = _write_tables(folded, output)
        tallies = _tallies(folded)
        findings += _integrity(folded)
        judged, equal = _judge(spark, plan, folded)
        findings += judged
        findings += fold_findings(plan, tallies, prove=prove)
        integrity = pa.Table.from_batches([to_batch("integrity", findings)])
        spark.createDataFrame(integrity).write.parquet(_uri(output / "integrity"))
        counts["integrity"] = len(findings)
        folded.unpersist()
        seconds = time.monotonic() - began
        return make_report("spark", seen, counts, findings, tallies, equal, seconds)
    finally:
        if session is None:
            spark.stop()


def _spread(
    spark: SparkSession, work: Callable[[Item], Answer], items: Sequence[Item]
) -> list[Answer]:
    """`work` of each item on the executors, in order.

    Items and answers are our own, so pickle is safe.
    """
    if not items:
        return []

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number, item in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                answer = pickle.dumps(work(pickle.loads(item)))  # noqa: S301
                yield pa.RecordBatch.from_pydict({"number": [number], "answer": [answer]})

    table = pa.table({"number": range(len(items)), "item": [pickle.dumps(item) for item in items]})
    frame = spark.createDataFrame(table).repartition(min(len(items), TASKS_MAX))
    answers = frame.mapInArrow(run, "number bigint, answer binary").collect()
    ordered = sorted((row["number"], bytes(row["answer"])) for row in answers)
    return [pickle.loads(answer) for _, answer in ordered]  # noqa: S301


def _uri(path: Path | str) -> str:
    """A file on the machines that run this, whatever file system Spark takes by default."""
    return f"file://{path}"


def _compare(overlap: Overlap) -> list[Conflict]:
    return list(compare(overlap))


def _ddl(schema: pa.Schema) -> str:
    return ", ".join(f"`{field.name}` {_DDL[field.type]}" for field in schema)


def _struct(schema: pa.Schema) -> str:
    return f"struct<{', '.join(f'`{f.name}`: {_DDL[f.type]}' for f in schema)}>"


def _fold(spark: SparkSession, plan: Plan, *, prove: bool) -> DataFrame:
    """One row per emitted row: the name of its table, and a struct in that table's column."""
    plans = {shard.shard: shard for shard in plan.shards}

    def fold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _in_batches(fold_sorted(_rows_of(batches), plans, prove=prove))

    columns = [f"`{_TABLE}` string", *(f"`{name}` {_struct(SCHEMAS[name])}" for name in SCHEMAS)]
    frames = [*_segments(spark, plan.shards), *_bases(spark, plan.shards)]
    if not frames:
        return spark.createDataFrame([], ", ".join(columns))
    return (
        reduce(DataFrame.unionByName, frames)
        .repartition("shard", "group")
        .sortWithinPartitions("shard", "group", "index", "sub")
        .mapInArrow(fold, ", ".join(columns))
    )


def _segments(spark: SparkSession, shards: Sequence[ShardPlan]) -> Iterator[DataFrame]:
    """The rows of all pieces. Whole files are read in one go, parts of a file one by one."""
    pieces = [piece for shard in shards for run in shard.runs for piece in run.pieces]
    reader = spark.read.schema(_ddl(COLUMNS))  # null where a segment has no such column yet
    for piece in pieces:
        if not piece.whole:
            inside = F.col("index").between(piece.first, piece.last)
            yield reader.parquet(_uri(piece.path)).where(inside).fillna(0, LATER_COLUMNS)
    whole = [_uri(piece.path) for piece in pieces if piece.whole]
    if whole:
        yield reader.parquet(*whole).fillna(0, LATER_COLUMNS)


def _bases(spark: SparkSession, shards: Sequence[ShardPlan]) -> Iterator[DataFrame]:
    """The records of the bases that runs start from, as rows before the run's first."""
    runs = [(shard.shard, run) for shard in shards for run in shard.runs if run.base is not None]
    if not runs:
        return

    def expand(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for item in batch.column("run").to_pylist():
                shard, run = pickle.loads(item)  # noqa: S301
                yield from _row_batches(_base_rows(shard, run))

    table = pa.table({"run": [pickle.dumps(each) for each in runs]})
    frame = spark.createDataFrame(table).repartition(min(len(runs), TASKS_MAX))
    yield frame.mapInArrow(expand, _ddl(COLUMNS))


def _base_rows(shard: int, run: Run) -> Iterator[Row]:
    if run.base is None:
        return
    for number, (key, value) in enumerate(read_records(Path(run.base.path))):
        yield Row(
            cluster_id=run.base.manifest.cluster_id,
            shard=shard,
            index=run.first - 1,
            sub=number,
            term=0,
            time_ms=0,
            wall_ms=0,
            rules_version=0,
            limits_version=0,
            generation_floor=0,
            group=group_of(key),
            kind=BASE_RECORD,
            command=key,
            events=value,
            error=None,
        )


def _row_batches(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    source = iter(rows)
    while part := list(islice(source, BATCH_ROWS)):
        columns = zip(*part, strict=True)
        arrays = [
            pa.array(column, field.type) for column, field in zip(columns, COLUMNS, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=COLUMNS)


def _rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    for batch in batches:
        columns = [batch.column(name).to_pylist() for name in COLUMNS.names]
        yield from map(Row._make, zip(*columns, strict=True))


def _in_batches(emitted: Iterable[Emitted]) -> Iterator[pa.RecordBatch]:
    """Rows of one table together, as many as a batch takes; the other tables' columns are null."""
    pending: dict[str, list[Emitted]] = {name: [] for name in SCHEMAS}
    for row in emitted:
        name = NAMES[type(row)]
        pending[name].append(row)
        if len(pending[name]) >= BATCH_ROWS:
            yield _wide(name, pending[name])
            pending[name] = []
    for name, rows in pending.items():
        if rows:
            yield _wide(name, rows)


def _wide(table: str, rows: Sequence[Emitted]) -> pa.RecordBatch:
    batch = to_batch(table, rows)
    arrays: list[pa.Array] = [pa.array([table] * len(rows), pa.string())]
    for name, schema in SCHEMAS.items():
        if name == table:
            arrays.append(pa.StructArray.from_arrays(batch.columns, fields=list(schema)))
        else:
            arrays.append(pa.nulls(len(rows), pa.struct(list(schema))))
    return pa.RecordBatch.from_arrays(arrays, names=[_TABLE, *SCHEMAS])


def _write_tables(folded: DataFrame, output: Path) -> dict[str, int]:
    """Every table but `integrity`, which is not complete yet.

    Returns the number of rows of each.
    """
    found = folded.groupBy(_TABLE).count().collect()
    counts = dict.fromkeys(TABLES, 0) | {
        row[_TABLE]: row["count"] for row in found if row[_TABLE] in TABLES
    }
    for name in TABLES:
        if name != "integrity":
            _table(folded, name).write.parquet(_uri(output / name))
    return counts


def _table(folded: DataFrame, name: str) -> DataFrame:
    return folded.where(F.col(_TABLE) == name).select(f"{name}.*")


def _tallies(folded: DataFrame) -> dict[tuple[int, str], int]:
    sums = _table(folded, TALLIES).groupBy("shard", "what").agg(F.sum("amount").alias("total"))
    return {(row["shard"], row["what"]): row["total"] for row in sums.collect()}


def _integrity(folded: DataFrame) -> list[Integrity]:
    return [Integrity(*row) for row in _table(folded, "integrity").collect()]


def _judge(spark: SparkSession, plan: Plan, folded: DataFrame) -> tuple[list[Integrity], int]:
    """The shards' digests against the recorded ones, and how many are equal.

    Spark adds the shares up.
    """
    limbs = [f"limb{number}" for number in range(4)]
    shares = _table(folded, DIGEST_DELTAS).groupBy("shard", "mark")
    rows = shares.agg(*(F.sum(limb).alias(limb) for limb in limbs)).collect()
    sums = {
        (row["shard"], row["mark"]): from_limbs(row[limb] for limb in limbs) % MODULUS
        for row in rows
    }
    findings: list[Integrity] = []
    doubts: list[Suspicion] = []
    equal = 0
    for shard in plan.shards:
        judgement = judge(shard, sums)
        findings += judgement.findings
        doubts += suspicions(shard, judgement.broken)
        equal += judgement.equal
    groups = _spread(spark, groups_in, [doubt.piece for doubt in doubts])
    for doubt, names in zip(doubts, groups, strict=True):
        findings += suspects(doubt, names)
    return findings, equal
