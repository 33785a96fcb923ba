"""What importing muster costs."""

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version

import muster


def modules_after(code):
    """The modules that a fresh interpreter has loaded after `code`, and its number of threads."""
    probe = f"{code}\nimport sys, threading\nprint(threading.active_count(), *sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    threads, *names = done.stdout.split()
    return int(threads), set(names)


def test_messages_load_neither_grpc_nor_asyncio():
    """A Spark executor imports muster.v1 and pays for protobuf alone."""
    threads, names = modules_after("import muster.v1.group_pb2, muster.v1.log_pb2, muster")
    assert not names & {"grpc", "asyncio", "muster.client"}
    assert "google.protobuf.message" in names
    assert threads == 1


def test_the_client_starts_no_thread():
    """Not on import, and not when a client is made: only when it is opened."""
    threads, names = modules_after("import muster; muster.Client('127.0.0.1:1')")
    assert "grpc" in names
    assert threads == 1


def test_every_public_name_is_there():
    """__all__, attributes and dir agree."""
    for name in muster.__all__:
        assert getattr(muster, name) is not None
        assert name in dir(muster)
    assert "Client" in muster.__all__


def test_a_name_that_is_not_there_is_an_attribute_error():
    """As for any module."""
    assert not hasattr(muster, "Producer")


def installed():
    """The floor of the dependencies is tested on the tree as it lies there."""
    try:
        return version("muster-client")
    except PackageNotFoundError:
        return "unknown"


def test_errors_and_the_version_are_there_after_importing_the_package_alone():
    """As a type checker believes it: `muster.errors.X` and `muster.X` are one class."""
    probe = (
        "import muster; print(muster.errors.GroupClosed is muster.GroupClosed, muster.__version__)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", installed()]
