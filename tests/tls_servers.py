"""Nodes behind TLS in every way that a client can get wrong, each with what the client is told."""

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from muster import Tls
from muster.v1 import admin_pb2, admin_pb2_grpc

TOPICS = admin_pb2.ListTopicsResponse(topics=[admin_pb2.Topic(name="t", partitions=1)])


@dataclass(frozen=True)
class Case:
    """`server`: its certificate, "" for none; `demands`: of whom it wants one of clients."""

    server: str
    told: str
    ca: str = ""
    shows: str = ""
    demands: str = ""


CASES = {
    "plain client": Case("good", "speaks TLS, and this client does not"),
    "plain node": Case("", "does not speak TLS, and this client does", ca="good"),
    "wrong authority": Case("good", "of no authority that is trusted here", ca="other"),
    "system's authorities": Case("good", "of no authority that is trusted here", ca="-"),
    "wrong name": Case("elsewhere", "is not for 127.0.0.1", ca="elsewhere"),
    "expired": Case("expired", "has expired", ca="expired"),
    "certificate demanded": Case("good", "demands a client certificate", ca="good", demands="good"),
    "certificate refused": Case(
        "good", "refuses the certificate", ca="good", shows="other", demands="good"
    ),
}


def make_certificates(folder: Path) -> None:
    """Pairs NAME.pem and NAME.key of P-256.

    Each certificate is its own authority; `authority` signed `server-only`, too.
    """

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, cwd=folder, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc")
    for name, names in (
        ("good", "IP:127.0.0.1"),
        ("other", "IP:127.0.0.1"),
        ("elsewhere", "DNS:elsewhere"),
        ("expired", "IP:127.0.0.1"),
        ("authority", "IP:127.0.0.1"),
    ):
        files = ("-keyout", f"{name}.key", "-out", f"{name}.pem")
        alt = ("-subj", "/CN=test", "-addext", f"subjectAltName={names}")
        openssl("req", "-x509", *key, *alt, *files)
    request = ("x509", "-x509toreq", "-in", "expired.pem", "-signkey", "expired.key")
    openssl(*request, "-copy_extensions", "copyall", "-out", "expired.csr")
    signed = ("x509", "-req", "-in", "expired.csr", "-signkey", "expired.key", "-days", "-1")
    openssl(*signed, "-copy_extensions", "copyall", "-out", "expired.pem")
    files = ("-keyout", "server-only.key", "-out", "server-only.pem")
    signed = ("-CA", "authority.pem", "-CAkey", "authority.key")
    alt = ("-subj", "/CN=node", "-addext", "subjectAltName=IP:127.0.0.1")
    openssl("req", "-x509", *key, *alt, "-addext", "extendedKeyUsage=serverAuth", *signed, *files)


def client_tls(folder: Path, case: Case) -> Tls | None:
    """The files of the client."""
    if not case.ca:
        return None
    ca = "" if case.ca == "-" else str(folder / f"{case.ca}.pem")
    pair = [str(folder / f"{case.shows}.{end}") for end in ("pem", "key")] if case.shows else []
    return Tls(ca, *pair)


@contextmanager
def serving(folder: Path, case: Case) -> Iterator[str]:
    """One node that lists topics; its endpoint."""
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    methods = admin_pb2.DESCRIPTOR.services_by_name["Topics"].methods
    servicer = type("Topics", (), {m.name: None for m in methods})()
    servicer.ListTopics = lambda *_: TOPICS
    admin_pb2_grpc.add_TopicsServicer_to_server(servicer, server)
    if case.server:
        pair = [(folder / f"{case.server}.{end}").read_bytes() for end in ("key", "pem")]
        wanted = (folder / f"{case.demands}.pem").read_bytes() if case.demands else None
        credentials = grpc.ssl_server_credentials([pair], wanted, bool(case.demands))
        port = server.add_secure_port("127.0.0.1:0", credentials)
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
