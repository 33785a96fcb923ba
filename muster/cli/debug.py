"""`muster debug bundle`: what a maintainer needs to see, in one file, without secrets."""

import io
import json
import platform
import tarfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Final

import typer
from google.protobuf.json_format import MessageToDict

from muster.cli.connection import Connection
from muster.cli.doctor import Config, cluster_findings
from muster.cli.errors import CommandError, ExitCode
from muster.cli.findings import Finding, on_node
from muster.cli.group.list import groups_of_all_nodes
from muster.cli.options import DEFAULT_BOOTSTRAP, DEFAULT_TIMEOUT_S, Bootstrap, Output, Timeout
from muster.cli.output import Format, Result, Table, show
from muster.cli.secrets import Scrubber, of_this_process
from muster.v1.admin_pb2 import DescribeClusterRequest, ListTopicsRequest

PART_BYTES_MAX: Final = 2 * 1024 * 1024
"""Each part has so much at most: of a log the end is kept, of anything else the beginning."""
PARTS_MAX: Final = 24
"""So a bundle has 48 MiB at most before it is packed."""
LOGS_MAX: Final = 8
ITEMS_MAX: Final = 5_000
"""Groups, and topics, that are listed."""

Files = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class NodeParts:
    """What a node's machine adds to a bundle, and the secrets that none of it may hold."""

    files: Mapping[str, bytes]
    secrets: list[bytes]


def register(app: typer.Typer) -> None:
    """Add `debug` to `muster`."""
    family = typer.Typer(help="What a maintainer needs to see.", no_args_is_help=True)
    family.command("bundle")(bundle)
    app.add_typer(family, name="debug")


def bundle(
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="[muster-debug-DATE.tar.gz, here]"),
    ] = None,
    config: Config = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A node's log, its last 2 MiB; repeatable, 8 at most."),
    ] = None,
    output: Output = Format.TABLE,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Gather versions, settings, status, groups, metrics and log lines in one file.

    Secrets are taken out: what the files of admin secrets, tokens and keys hold, and what looks
    like one. Names of groups, topics, clients and hosts stay in it.
    """
    target = to or Path(time.strftime("muster-debug-%Y%m%d-%H%M%S.tar.gz", time.gmtime()))
    if log and len(log) > LOGS_MAX:
        raise CommandError(
            f"{len(log)} logs are more than {LOGS_MAX}",
            next_step="name the most telling ones",
            exit_code=ExitCode.USAGE,
        )
    files = gather(config, log or [], bootstrap, timeout)
    try:
        with target.open("xb") as opened:
            target.chmod(0o600)
            opened.write(packed(files))
    except OSError as error:
        raise CommandError(
            f"the bundle cannot be written: {error}",
            next_step="give --to a new file in a folder that you can write to",
            exit_code=ExitCode.CONFLICT if isinstance(error, FileExistsError) else ExitCode.ERROR,
        ) from error
    items = [{"part": name, "bytes": len(data)} for name, data in files.items()]
    show(
        Result(
            schema="muster.debug.bundle/v1",
            document={"file": str(target), "parts": items},
            tables=[
                Table(("PART", "BYTES"), [[name, len(data)] for name, data in files.items()]),
                Table(("WRITTEN",), [[str(target)]]),
            ],
            items=items,
            names=[str(target)],
        ),
        output,
    )


def gather(config: Path | None, logs: list[Path], bootstrap: str, timeout_s: float) -> Files:
    """All parts, each bounded and without secrets. One that cannot be had says why."""
    shown, secrets = of_this_process()
    raw: Files = {}

    def add(name: str, make: Callable[[], bytes]) -> None:
        try:
            raw[name] = make()
        except (CommandError, OSError) as error:
            raw[f"{name}.error.txt"] = f"{error}\n".encode()

    add("versions.json", lambda: _json(_versions()))
    add("environment.json", lambda: _json(shown))
    add("cluster.json", lambda: _json(_cluster(bootstrap, timeout_s)))
    add("groups.json", lambda: _json(_groups(bootstrap, timeout_s)))
    add("doctor.txt", lambda: _findings(cluster_findings(bootstrap, timeout_s)))
    if config is not None:
        parts: NodeParts = on_node("bundle")(config)
        raw |= parts.files
        secrets += parts.secrets
        add("node/doctor.txt", lambda: _findings(on_node("doctor")(config)))
    for number, log in enumerate(logs):
        add(f"logs/{number}-{log.name}", lambda log=log: _tail(log))  # type: ignore[misc]
    scrubber = Scrubber(secrets)
    files = {}
    for name, data in list(raw.items())[:PARTS_MAX]:
        clean = scrubber.scrub(data)
        is_log = name.startswith("logs/")
        files[name] = clean[-PART_BYTES_MAX:] if is_log else clean[:PART_BYTES_MAX]
    return files


def packed(files: Mapping[str, bytes]) -> bytes:
    """The files as a tar.gz, all of them in one folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"muster-debug/{name}")
            entry.size, entry.mtime = len(data), int(time.time())
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _versions() -> dict[str, object]:
    packages = {one.name: one.version for one in distributions() if one.name}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": dict(sorted(packages.items())),
    }


def _cluster(bootstrap: str, timeout_s: float) -> dict[str, object]:
    with Connection(bootstrap, timeout_s) as to:
        _, views = to.ask_each(
            lambda at, s: at.admin.DescribeCluster(DescribeClusterRequest(), timeout=s)
        )
    return {
        f"node {view.node_id}": MessageToDict(view.answer) if view.answer else view.error
        for view in views
    }


def _groups(bootstrap: str, timeout_s: float) -> dict[str, object]:
    with Connection(bootstrap, timeout_s) as to:
        items, incomplete = groups_of_all_nodes(to)
        topics = to.ask(lambda at, s: at.topics.ListTopics(ListTopicsRequest(), timeout=s)).topics
    return {
        "groups": items[:ITEMS_MAX],
        "groups_in_all": len(items),
        "incomplete": incomplete.message if incomplete else None,
        "topics": [{"name": one.name, "partitions": one.partitions} for one in topics[:ITEMS_MAX]],
        "topics_in_all": len(topics),
    }


def _findings(found: list[Finding]) -> bytes:
    lines = (
        f"{one.check}\t{one.where}\t{one.result}\t{one.detail}\t{one.next_step}" for one in found
    )
    return "".join(f"{line}\n" for line in lines).encode()


def _tail(file: Path) -> bytes:
    """A log's last lines, whole ones."""
    with file.open("rb") as opened:
        size = opened.seek(0, io.SEEK_END)
        opened.seek(max(0, size - PART_BYTES_MAX))
        data = opened.read(PART_BYTES_MAX)
    return data.partition(b"\n")[2] if size > PART_BYTES_MAX else data


def _json(document: object) -> bytes:
    return json.dumps(document, indent=1, default=str).encode() + b"\n"
