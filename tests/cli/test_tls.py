"""What a command says where TLS is why no node can be reached: once, in one line, at once."""

import os
import subprocess
import sys

import pytest

from tests.tls_servers import CASES, Case, client_tls, make_certificates, serving

FOREVER = "--timeout=3600"
"""Whoever waits for the end of its time here does not pass: the test ends before."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Certificates."""
    made = tmp_path_factory.mktemp("tls")
    make_certificates(made)
    return made


@pytest.fixture
def list_topics(folder):
    """Run `muster topic list` in a process of its own, with the files of a case."""

    def run(case, *arguments, **environment):
        own = {
            name: it
            for name, it in os.environ.items()
            if not name.startswith(("MUSTER_", "GRPC_V"))
        }
        tls = client_tls(folder, case)
        if tls is not None:
            # A command without any of its own takes the system's authorities by this alone.
            files = {
                "MUSTER_TLS_CA": tls.ca,
                "MUSTER_TLS_CERT": tls.cert,
                "MUSTER_TLS_KEY": tls.key,
            }
            own.update({name: file or "" for name, file in files.items()})
        command = (sys.executable, "-m", "muster.cli", "topic", "list", FOREVER, *arguments)
        return subprocess.run(
            command, env=own | environment, capture_output=True, text=True, timeout=60, check=False
        )

    return run


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].ca != "-"])
def test_a_command_says_what_is_wrong_with_tls(folder, list_topics, name):
    """The node is named and so is the variable to set; stderr has nothing else, from gRPC neither.

    Nothing is tried for the whole time.
    """
    case = CASES[name]
    with serving(folder, case) as endpoint:
        ran = list_topics(case, "-b", endpoint)
    error, next_step = ran.stderr.splitlines()
    assert error.startswith(f"error: {endpoint}")
    assert case.told in error
    assert next_step.startswith("next: ")
    assert ran.returncode == (7 if case.demands else 6)


def test_whoever_asks_for_the_lines_of_grpc_has_them(folder, list_topics):
    """A setting of the user's own wins."""
    case = CASES["plain node"]
    with serving(folder, case) as endpoint:
        told = list_topics(case, "-b", endpoint, GRPC_VERBOSITY="debug").stderr.splitlines()
    assert len(told) > 2
    assert case.told in told[-2]


def test_one_node_with_a_good_certificate_is_enough(folder, list_topics):
    """A bad one is passed over, and a node that is down beside a bad one hides nothing."""
    good, bad = Case("good", "", ca="good"), CASES["wrong authority"]
    with serving(folder, good) as right, serving(folder, Case("other", "")) as wrong:
        assert list_topics(good, "-o", "name", "-b", f"{wrong},{right}").stdout == "t\n"
    with serving(folder, bad) as wrong:
        ran = list_topics(bad, "-b", f"{right},{wrong}")
    assert bad.told in ran.stderr
