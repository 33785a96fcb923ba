"""What `muster doctor --config FILE` looks at: the machine of a node, whether it runs or not."""

import errno
import os
import re
import resource
import shlex
import shutil
import socket
import ssl
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from muster.cli.doctor import expiry
from muster.cli.findings import Finding, Verdict
from muster.net.tls import no_passphrase
from musterd.coordinator.api.limits.quota_buckets import DELAYED_MAX, KEY_NAMES
from musterd.coordinator.api.server import connections_max
from musterd.coordinator.machine.quotas import QuotaKey
from musterd.coordinator.node.config import ConfigError, Settings, load_settings, split_address
from musterd.coordinator.node.debug_parts import metrics_page
from musterd.raft.tls import read_contexts
from musterd.storage.rocks import store_holder

HERE: Final = "here"
SYNCS: Final = 32
SYNC_BYTES: Final = 4_096
SYNC_SLOW_S: Final = 0.05
SYNC_TOO_SLOW_S: Final = 1.0
"""Where MusterSlowFsyncCritical would come (deploy/prometheus/alerts.yml)."""
FILES_FEW: Final = 65_536
CONNECT_S: Final = 1.0


def examine(config: Path) -> list[Finding]:
    """Look at what the node with these settings needs of its machine; it is not disturbed."""
    try:
        settings = load_settings(config, {})
    except ConfigError as error:
        step = error.next_step or "correct the setting; `muster serve --help`"
        return [Finding("settings", HERE, Verdict.PROBLEM, str(error), step)]
    return [
        Finding("settings", HERE, Verdict.OK, f"{config} can be used"),
        *directory(settings.data_dir),
        *disk(settings.data_dir, settings.disk_reserve_bytes),
        *fsync(settings.data_dir),
        open_files(settings.data_dir),
        *ports(settings),
        *(peer(node, address) for node, address in settings.peers.items()),
        *certificate(settings.tls_cert, settings.tls_key),
        *peer_certificate(settings),
        operators(settings),
        *quotas(settings),
    ]


# ---- the disk


def directory(data_dir: Path) -> list[Finding]:
    """Whether `muster init` was here, and whether this user may write."""
    if not data_dir.is_dir() or not any(data_dir.iterdir()):
        step = f"`muster init --data-dir {data_dir}`, once"
        return [Finding("data", HERE, Verdict.PROBLEM, f"{data_dir} holds no node", step)]
    if not os.access(data_dir, os.W_OK):
        step = "run this as the user that the node runs as, or give it the directory"
        return [Finding("data", HERE, Verdict.PROBLEM, f"{data_dir} cannot be written to", step)]
    return [Finding("data", HERE, Verdict.OK, f"{data_dir} holds a node")]


def disk(data_dir: Path, reserve: int) -> list[Finding]:
    """Free bytes beside the reserve below which nothing that grows the state is taken."""
    if not data_dir.is_dir():
        return []
    free = shutil.disk_usage(data_dir).free
    detail = f"{free // 2**20} MiB are free, {reserve // 2**20} MiB are the reserve"
    step = "make room, or move the directory to a larger disk (docs/operations.md, Sizing)"
    if free < reserve:
        return [Finding("disk", HERE, Verdict.PROBLEM, detail, step)]
    if free < 2 * reserve:
        return [Finding("disk", HERE, Verdict.WARNING, detail, step)]
    return [Finding("disk", HERE, Verdict.OK, detail)]


def sync_times(data_dir: Path) -> list[float]:
    """Seconds that each of some small writes took to be synced. Raises OSError."""
    took = []
    with tempfile.TemporaryFile(dir=data_dir, prefix="doctor-") as file:
        for _ in range(SYNCS):
            file.write(bytes(SYNC_BYTES))
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - began)
    return took


def fsync(data_dir: Path, measure: Callable[[Path], list[float]] = sync_times) -> list[Finding]:
    """How long the disk takes to keep a write: every acknowledged commit waits for that."""
    if not data_dir.is_dir():
        return []
    try:
        took = measure(data_dir)
    except OSError as error:
        step = "run this as the user that the node runs as; look into the kernel's log"
        return [Finding("fsync", HERE, Verdict.PROBLEM, f"{data_dir}: {error}", step)]
    middle = median(took)
    detail = (
        f"{middle * 1e3:.1f} ms in the middle, {max(took) * 1e3:.1f} ms at most, of {len(took)}"
    )
    step = "give the node a disk of its own, with a write cache that survives a power cut"
    if middle >= SYNC_TOO_SLOW_S:
        return [Finding("fsync", HERE, Verdict.PROBLEM, detail, step)]
    if middle >= SYNC_SLOW_S or max(took) >= SYNC_TOO_SLOW_S:
        return [Finding("fsync", HERE, Verdict.WARNING, detail, step)]
    return [Finding("fsync", HERE, Verdict.OK, detail)]


def open_files(data_dir: Path, processes: Path = Path("/proc")) -> Finding:
    """Whether the node may open as many files as its clients' connections need.

    That is told of the process where it runs, else of one that this shell would start.
    """
    pid = store_holder(data_dir)
    if pid is None:
        return of_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[1], "started from here")
    try:
        told = _OPEN_FILES.search((processes / str(pid) / "limits").read_text())
    except OSError:
        told = None
    if not pid or told is None:
        step = "run this on the node's machine, or in its container"
        detail = "a node runs on this data directory, and what its process may open is not told"
        return Finding("files", HERE, Verdict.UNKNOWN, detail, step)
    limit = -1 if told[1] == "unlimited" else int(told[1])
    return of_limit(limit, f"as it runs, process {pid}")


_OPEN_FILES: Final = re.compile(r"^Max open files +(\d+|unlimited) ", re.MULTILINE)


def of_limit(limit: int, whose: str) -> Finding:
    """Judge how many files a node may open; -1 is any number."""
    if limit in {resource.RLIM_INFINITY, -1}:
        return Finding("files", HERE, Verdict.OK, f"a node may open any number of files, {whose}")
    connections = connections_max(limit)
    detail = f"a node may open {limit} files, {whose}: {connections} connections of clients"
    if limit < FILES_FEW:
        step = f"raise it to {FILES_FEW} or more: LimitNOFILE= in the unit, or `ulimit -n`"
        return Finding("files", HERE, Verdict.WARNING, detail, step)
    return Finding("files", HERE, Verdict.OK, detail)


# ---- the network


def ports(settings: Settings) -> list[Finding]:
    """Each port: free, or taken by a node that answers as live at its metrics port."""
    named = {
        "listen": settings.listen,
        "peer_listen": settings.peer_listen,
        "metrics_listen": settings.metrics_listen,
    }
    taken = {name: _why_not(address) for name, address in named.items() if address}
    runs = taken.get("metrics_listen") == errno.EADDRINUSE and _is_live(settings.metrics_listen)
    return [_port(name, named[name], why, runs=runs) for name, why in taken.items()]


def _port(name: str, address: str, why: int, *, runs: bool) -> Finding:
    check, where = f"port {name}", HERE
    if not why:
        return Finding(check, where, Verdict.OK, f"{address} is free: the node does not run")
    if why == errno.EADDRINUSE and runs:
        return Finding(check, where, Verdict.OK, f"{address} is the running node's")
    if why == errno.EADDRINUSE:
        step = "see who listens there: `ss -ltnp`"
        detail = f"{address} is taken, and no node answers at metrics_listen"
        return Finding(check, where, Verdict.PROBLEM, detail, step)
    step = f"give {name} an address that this machine has, and a port that its user may use"
    detail = f"{address} cannot be had: {os.strerror(why)}"
    return Finding(check, where, Verdict.PROBLEM, detail, step)


def _why_not(address: str) -> int:
    """The number of the error with which the address cannot be bound; 0 where it can be."""
    try:
        host, port = split_address(address)
        family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(where)
            one.listen()
    except socket.gaierror:
        return errno.EADDRNOTAVAIL
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _is_live(address: str) -> bool:
    host, port = split_address(address)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # no address to bind
    try:
        with socket.create_connection((host, port), CONNECT_S) as one:
            one.settimeout(CONNECT_S)
            one.sendall(b"GET /live HTTP/1.1\r\n\r\n")
            return one.recv(64).startswith(b"HTTP/1.1 200 ")
    except OSError:
        return False


def peer(node: int, address: str) -> Finding:
    """Whether another node takes connections at its peer port."""
    where = f"node {node}"
    try:
        socket.create_connection(split_address(address), CONNECT_S).close()
    except OSError as error:
        step = "start that node; see that a firewall lets its peer port through"
        return Finding("peer", where, Verdict.WARNING, f"{address}: {error}", step)
    return Finding("peer", where, Verdict.OK, f"{address} takes connections")


def certificate(cert: Path | None, key: Path | None) -> list[Finding]:
    """Whether the client port's certificate and its key can be read and belong together."""
    if cert is None or key is None:
        return [Finding("tls", HERE, Verdict.OK, "none: clients connect plainly")]
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key, password=no_passphrase)
    except (OSError, ValueError) as error:
        step = "give tls_cert and tls_key PEM files that belong together, without a passphrase"
        return [Finding("tls", HERE, Verdict.PROBLEM, f"{cert}, {key}: {error}", step)]
    until = x509.load_pem_x509_certificate(cert.read_bytes()).not_valid_after_utc
    together = Finding("tls", HERE, Verdict.OK, f"{cert} and {key} belong together")
    return [together, expiry("expiry", HERE, until.timestamp(), time.time())]


def peer_certificate(settings: Settings) -> list[Finding]:
    """Whether what this node shows to other nodes can be read, is of `peer_ca`, and until when."""
    files = settings.peer_files
    if files is None:
        return [Finding("peer tls", HERE, Verdict.OK, "none: nodes connect plainly")]
    try:
        read_contexts(files)
        own = x509.load_pem_x509_certificate(files.cert.read_bytes())
        authorities = x509.load_pem_x509_certificates(files.ca.read_bytes())
    except (OSError, ValueError, x509.InvalidVersion) as error:
        step = "give peer_cert, peer_key and peer_ca PEM files, the key without a passphrase"
        return [Finding("peer tls", HERE, Verdict.PROBLEM, f"{files.cert}: {error}", step)]
    if not any(_is_of(own, authority) for authority in authorities):
        step = "have that authority make it: `muster cert node` (docs/secure.md)"
        detail = f"{files.cert} is not of an authority of {files.ca}"
        return [Finding("peer tls", HERE, Verdict.PROBLEM, detail, step)]
    together = Finding("peer tls", HERE, Verdict.OK, f"{files.cert} is of {files.ca}")
    until, now = own.not_valid_after_utc.timestamp(), time.time()
    return [together, expiry("peer expiry", HERE, until, now)]


def _is_of(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def operators(settings: Settings) -> Finding:
    """Whether operators' calls are taken, and whether others can listen."""
    check = "operators"
    if settings.is_on_loopback:
        return Finding(check, HERE, Verdict.OK, "the ports are for this machine alone")
    if settings.admin_secret_file is None:
        step = "set admin_secret_file on every node (docs/access.md, The admin secret)"
        detail = "without an admin secret operators' calls take rules or superusers' certificates"
        return Finding(check, HERE, Verdict.WARNING, detail, step)
    if not settings.hears_secret:
        step = "give the node certificates (docs/secure.md); else insecure_admin_secret"
        detail = "the admin secret is not taken without TLS, but from this machine"
        return Finding(check, HERE, Verdict.WARNING, detail, step)
    if settings.insecure_admin_secret and settings.tls_cert is None:
        step = "give the node certificates (docs/secure.md)"
        detail = "the admin secret is taken in the clear: whoever listens has it"
        return Finding(check, HERE, Verdict.WARNING, detail, step)
    return Finding(check, HERE, Verdict.OK, "there is an admin secret, and nobody can listen to it")


def quotas(settings: Settings) -> list[Finding]:
    """What callers of the running node were told to wait for, and who they are.

    Nothing where it does not run. Those that were told so last are named, a few.
    """
    if not settings.metrics_listen or not _is_live(settings.metrics_listen):
        return []
    try:
        page = metrics_page(settings)
        # of a page that was too long the last line is not whole
        text = page[: page.rfind(b"\n") + 1].decode()
        families = {family.name: family for family in text_string_to_metric_families(text)}
    except (OSError, ValueError) as error:
        return [Finding("quotas", HERE, Verdict.UNKNOWN, f"the metrics page: {error}")]
    throttled = families.get("muster_quota_throttled")
    if throttled is None:
        return [Finding("quotas", HERE, Verdict.UNKNOWN, "the metrics page does not tell it")]
    counted = [(one.labels.get("key", ""), one.value) for one in throttled.samples]
    told = ", ".join(f"{key} {calls:.0f}" for key, calls in counted if calls)
    if not told:
        return [Finding("quotas", HERE, Verdict.OK, "nobody was told to wait since the start")]
    step = "`muster quota list` shows them: raise them, or have clients ask less (docs/quotas.md)"
    detail = f"calls that were told to wait since the start, by quota: {told}"
    delays = families.get("muster_quota_delays")
    named = delays.samples[-DELAYED_MAX:] if delays else []
    return [Finding("quotas", HERE, Verdict.WARNING, detail, step), *map(_delayed, named)]


def _delayed(sample: Sample) -> Finding:
    """A principal or a group that a quota holds up, and how that ends."""
    entity, name, key = (sample.labels.get(label, "") for label in ("entity", "name", "key"))
    who = f"{entity}:{name}"
    times = f"{sample.value:.0f}"
    raised = f"`muster quota set {shlex.quote(who)} {key}=VALUE` raises it"
    if key == KEY_NAMES[QuotaKey.MEMBERS]:
        detail = f"newcomers were refused {times} times by its quota of members"
        step = f"run fewer members; {raised} (docs/quotas.md)"
    else:
        detail = f"was told to wait {times} times by its quota of {key}"
        step = f"have it ask less often; {raised} (docs/quotas.md)"
    return Finding("quotas", who, Verdict.WARNING, detail, step)
