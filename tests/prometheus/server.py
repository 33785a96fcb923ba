"""A Prometheus of its own: a directory, a port on loopback, the rules of deploy/, fast scrapes."""

import json
import socket
import time
import urllib.error
import urllib.parse
import urllib.request

from musterd.coordinator.node.prometheus import SCRAPE_S
from musterd.coordinator.node.prometheus import Prometheus as DevPrometheus


class Prometheus(DevPrometheus):
    """The Prometheus of `muster dev --prometheus`, on a free port, and questions to it."""

    def __init__(self, program, directory, targets):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        super().__init__(program, directory, targets, port)

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


def filled(expression):
    """A panel's query with the dashboard's variables filled in."""
    for name, value in (
        ("$__rate_interval", "5s"),
        ("$cluster", "muster"),
        ("$job", "muster"),
        ("$instance", ".*"),
        ("$group", ".*"),
    ):
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


def labels(metric):
    """Labels as a key."""
    return tuple(sorted(metric.items()))


def wait_for(condition, timeout_s, why=lambda: "it did not become true"):
    """Wait until `condition()` holds; fails with `why()`."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, why()
        time.sleep(0.1)
