"""What a command says where TLS is why no node can be reached: once, in one line, at once."""

import pytest

from tests.tls_servers import CASES, Case, client_tls, make_certificates, serving

FOREVER = "--timeout=3600"
"""Whoever waits for the end of its time here does not pass."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Certificates."""
    made = tmp_path_factory.mktemp("tls")
    make_certificates(made)
    return made


@pytest.fixture
def shell(folder, monkeypatch):
    """The environment of a case."""

    def set_up(case):
        for name in ("OUTPUT", "BOOTSTRAP", "TLS_CA", "TLS_CERT", "TLS_KEY"):
            monkeypatch.delenv(f"MUSTER_{name}", raising=False)
        tls = client_tls(folder, case)
        if tls is not None:
            # A command without any of its own takes the system's authorities by this alone.
            monkeypatch.setenv("MUSTER_TLS_CA", tls.ca)
            monkeypatch.setenv("MUSTER_TLS_CERT", tls.cert)
            monkeypatch.setenv("MUSTER_TLS_KEY", tls.key)

    return set_up


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].ca != "-"])
def test_a_command_says_what_is_wrong_with_tls(folder, muster, shell, name):
    """The node is named and so is the variable to set; nothing is tried for the whole time."""
    case = CASES[name]
    shell(case)
    with serving(folder, case) as endpoint:
        ran = muster("topic", "list", FOREVER, "-b", endpoint)
    error, next_step = ran.err.splitlines()
    assert error.startswith(f"error: {endpoint}")
    assert case.told in error
    assert next_step.startswith("next: ")
    assert ran.exit_code == (7 if case.demands else 6)


def test_one_node_with_a_good_certificate_is_enough(folder, muster, shell):
    """A bad one is passed over, and a node that is down beside a bad one hides nothing."""
    good, bad = Case("good", "", ca="good"), CASES["wrong authority"]
    shell(good)
    with serving(folder, good) as right, serving(folder, Case("other", "")) as wrong:
        assert muster("topic", "list", "-o", "name", "-b", f"{wrong},{right}").out == "t\n"
    shell(bad)
    with serving(folder, bad) as wrong:
        ran = muster("topic", "list", FOREVER, "-b", f"{right},{wrong}")
    assert bad.told in ran.err
