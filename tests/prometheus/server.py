"""A Prometheus of its own: a directory, a port on loopback, the rules of deploy/, fast scrapes."""

import json
import re
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from musterd.coordinator.host import tied_command

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
READY_S_MAX = 30.0
SCRAPE_S = 1


@dataclass
class Prometheus:
    """As a context manager: starts on entry, stops on exit."""

    program: Path
    directory: Path
    targets: list[str]
    process: subprocess.Popen | None = field(default=None, repr=False)
    url: str = ""

    def __enter__(self):
        self._configure()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [
            str(self.program),
            f"--config.file={self.directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ]
        with (self.directory / "log").open("wb") as log:
            self.process = subprocess.Popen(tied_command(command), stdout=log, stderr=log)
        wait_for(self._ready, READY_S_MAX, lambda: (self.directory / "log").read_text()[-2000:])
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _configure(self):
        """deploy/prometheus as it is, but for targets, intervals and hold times."""
        self.directory.mkdir(parents=True)
        text = (FOLDER / "prometheus.yml").read_text()
        text, replaced = re.subn(r"targets: \[.*\]", f"targets: {json.dumps(self.targets)}", text)
        assert replaced == 1
        text, replaced = re.subn(r"_interval: 15s", f"_interval: {SCRAPE_S}s", text)
        assert replaced == 2
        (self.directory / "prometheus.yml").write_text(text)
        for name in ("recording.yml", "alerts.yml"):
            rules = (FOLDER / name).read_text().replace("interval: 15s", f"interval: {SCRAPE_S}s")
            (self.directory / name).write_text(rules)

    def _ready(self):
        assert self.process.poll() is None, (self.directory / "log").read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2) as answer:
                return answer.status == 200
        except (urllib.error.URLError, TimeoutError):
            return False

    # ---- the API

    def ask(self, path, **parameters):
        """GET an API path; its data. An error of the API is an error here."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                body = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error
        assert body["status"] == "success", body
        return body["data"]

    def now(self, expression):
        """An instant query: labels -> value."""
        found = self.ask("query", query=expression)["result"]
        return {labels(one["metric"]): float(one["value"][1]) for one in found}

    def over(self, expression, window):
        """A query over a window (start and end as Unix time): labels -> values, one a second."""
        start_s, end_s = window
        found = self.ask("query_range", query=expression, start=start_s, end=end_s, step=SCRAPE_S)
        return {
            labels(one["metric"]): [float(value) for _, value in one["values"]]
            for one in found["result"]
        }


def labels(metric):
    """Labels as a key."""
    return tuple(sorted(metric.items()))


def wait_for(condition, timeout_s, why=lambda: "it did not become true"):
    """Wait until `condition()` holds; fails with `why()`."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, why()
        time.sleep(0.1)
