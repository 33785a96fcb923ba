"""A Prometheus beside a cluster on this machine: Debian's program, our own rules."""

import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from pathlib import Path
from typing import Final, Self

from musterd.coordinator.host import tied_command
from musterd.coordinator.node.loopback import HOST, ClusterError

FOLDER: Final = Path(__file__).parents[2] / "deploy" / "prometheus"
READY_S_MAX: Final = 30.0
STOP_S_MAX: Final = 10.0
POLL_S: Final = 0.1
SCRAPE_S: Final = 1
"""Between two looks: on one machine there is nothing to spare, and who tries things out waits."""


def find_program(cache: Path) -> Path:
    """Where the program is: in PATH, else in `cache`, into which Debian's package is unpacked.

    Raises ClusterError where it cannot be had.
    """
    if found := shutil.which("prometheus"):
        return Path(found)
    program = cache / "usr" / "bin" / "prometheus"
    if not program.exists():
        cache.parent.mkdir(parents=True, exist_ok=True)
        command = ["sh", str(FOLDER / "fetch.sh"), str(cache)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            raise ClusterError(
                (done.stderr.strip().splitlines() or ["Prometheus cannot be fetched"])[-1],
                "install Prometheus (`apt install prometheus`), so that it is in PATH",
            )
    return program


def cache_folder() -> Path:
    """Where a program that was fetched is kept for the next time."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "muster" / "prometheus"


class Prometheus:
    """As a context manager: starts on entry and waits until it is ready, stops on exit."""

    def __init__(self, program: Path, directory: Path, targets: list[str], port: int) -> None:
        """`targets`: the nodes' metrics ports; `port`: its own, on loopback."""
        self.url = f"http://{HOST}:{port}"
        self._program = program
        self._directory = directory
        self._targets = targets
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start. Raises ClusterError where it ends, or is not ready in time."""
        self._configure()
        command = [
            str(self._program),
            f"--config.file={self._directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={self._directory / 'data'}",
            f"--web.listen-address={self.url.removeprefix('http://')}",
            "--log.level=warn",
        ]
        with (self._directory / "log").open("wb") as log:
            self._process = subprocess.Popen(tied_command(command), stdout=log, stderr=log)  # noqa: S603
        try:
            self._wait_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop()

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _configure(self) -> None:
        """deploy/prometheus as it is, but for targets and intervals."""
        self._directory.mkdir(parents=True, exist_ok=True)
        for name in ("prometheus.yml", "recording.yml", "alerts.yml"):
            text = (FOLDER / name).read_text("utf-8")
            text = re.sub(r"targets: \[.*\]", f"targets: {json.dumps(self._targets)}", text)
            text = re.sub(r"interval: 15s", f"interval: {SCRAPE_S}s", text)
            (self._directory / name).write_text(text, "utf-8")

    def _wait_ready(self) -> None:
        end_s = time.monotonic() + READY_S_MAX
        while not self._is_ready():
            ended = self._process is None or self._process.poll() is not None
            if ended or time.monotonic() > end_s:
                log = self._directory / "log"
                last = (log.read_text("utf-8", errors="replace").splitlines() or [""])[-1]
                raise ClusterError(f"Prometheus {'ended' if ended else 'is not ready'}: {last}")
            time.sleep(POLL_S)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2) as answer:  # noqa: S310
                return int(answer.status) == HTTPStatus.OK
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return False
