"""`muster dev --prometheus`: it scrapes every node, with the rules of deploy/prometheus."""

import json
import os
import subprocess
import sys
import urllib.request

import pytest

from tests.prometheus.server import wait_for

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


def test_it_knows_every_node_and_has_the_rules(programs):
    """The program is taken from PATH; the ready line says where Prometheus listens."""
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    dev = subprocess.Popen(
        [*(sys.executable, "-m", "muster.cli", "dev", "--prometheus", "--port=0"), "-o", "jsonl"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PATH": path},
    )

    def ask(question):
        with urllib.request.urlopen(f"{ready['prometheus']}/api/v1/{question}", timeout=30) as got:
            return json.load(got)["data"]

    try:
        ready = json.loads(dev.stdout.readline())
        wait_for(
            lambda: [one["value"][1] for one in ask("query?query=count(up==1)")["result"]] == ["3"],
            60,
        )
        assert {group["name"] for group in ask("rules")["groups"]} >= {"muster", "muster-recording"}
    finally:
        dev.terminate()
        dev.wait(60)
        dev.stdout.close()
