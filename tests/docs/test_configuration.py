"""docs/configuration.md says what the code says, and `muster serve --help` has the same flags."""

import os
import re
import subprocess
import sys

import pytest

from musterd.coordinator.node.config import FIELDS
from musterd.coordinator.node.timeout_rules import SETTABLE
from tests.docs import configuration

TEXT = configuration.TARGET.read_text("utf-8")
ROOT = configuration.TARGET.parents[1]


def test_the_page_is_what_the_code_says():
    """`make configuration` writes it."""
    assert configuration.document() == TEXT


@pytest.fixture(scope="module")
def flags():
    """The flags of `muster serve`."""
    done = subprocess.run(
        [sys.executable, "-m", "muster.cli", "serve", "--help"],
        env={**os.environ, "COLUMNS": "400"},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(re.findall(r"^ +(?:-\w, )?(--[\w-]+)(.*)$", done.stdout, re.MULTILINE))


def test_each_setting_is_a_flag_of_serve_and_no_other_is(flags):
    """A setting without a flag, or a flag that is not on the page, is noticed; so is no help."""
    names = FIELDS.keys() - configuration.HIDDEN
    wanted = {configuration.flag(name) for name in names}
    assert flags.keys() - {"--config", "--help"} == wanted
    assert {name for name in flags if f"`{name}`" in TEXT} >= wanted
    assert [name for name, rest in flags.items() if not re.search(r"  \S", rest)] == []


def test_a_default_that_serves_help_names_is_the_pages(flags):
    """Those in square brackets."""
    shown = {
        name: found[1] for name, rest in flags.items() if (found := re.search(r"\[(.+?)\]", rest))
    }
    assert len(shown) >= 3
    for name, default in shown.items():
        (row,) = [line for line in TEXT.splitlines() if f"| `{name}` |" in line]
        assert f"| `{default}` |" in row


def test_each_flag_of_serve_sets_its_setting(tmp_path):
    """None is dropped between the command line and the settings."""
    wrong = {
        configuration.flag(name): "-1"
        for name, field in FIELDS.items()
        if type(field.default) is int and name not in configuration.HIDDEN
    }
    assert {"--heartbeat-ms", "--reach-probe-ms", "--disk-reserve-bytes"} <= wrong.keys()
    done = subprocess.run(
        [sys.executable, "-m", "muster.cli", "serve", f"--data-dir={tmp_path}"]
        + [f"{name}={value}" for name, value in wrong.items()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    for name in wrong:
        assert f"{name[2:].replace('-', '_')}: " in done.stderr


def test_every_variable_that_a_command_reads_is_on_the_page():
    """Found in the sources."""
    named = re.compile(r'(?:envvar|FILE_VARIABLE) ?= ?"(\w+)"')
    read: set[str] = set()
    for package in ("muster", "coordinator", "export", "replay", "demo", "chaos"):
        for path in (ROOT / package).rglob("*.py"):
            read |= set(named.findall(path.read_text("utf-8")))
    assert {"MUSTER_BOOTSTRAP", "MUSTERD_DATA_DIR", "MUSTER_ADMIN_SECRET_FILE"} <= read
    assert [name for name in read if f"`{name}`" not in TEXT] == []


def test_every_key_of_compat_is_on_the_page_and_no_other_is():
    """Found in the source that takes them."""
    source = (ROOT / "muster" / "compat" / "config.py").read_text("utf-8")
    taken = set(re.findall(r'\((?:given, )?"([a-z]+[._][\w.]+)"', source))
    taken |= {f"ssl.{name}.location" for name in ("ca", "certificate", "key")}
    assert {key for key, *_ in configuration.COMPAT} == taken


def test_the_times_of_elections_are_on_the_page():
    """With the lines that bind them."""
    assert all(f"| `{name}` |" in TEXT for name in SETTABLE)
    assert "`quorum_ms >= 3 * heartbeat_ms`" in TEXT
