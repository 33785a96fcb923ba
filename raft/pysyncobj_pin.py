"""The gate: this package was written against one release of PySyncObj and refuses any other.

raft/ overrides private methods of `SyncObj`; a release that moved one of them would silently
change what the overrides do. So the version and the hash of the very file are checked when this
module is imported, and nothing can switch that off.

It also replaces two names in PySyncObj's module: its clock, so that a driver's own clock rules
(`use_clock`), and its poller, because nothing here waits inside a tick. And it stands in for the
module that encrypts what PySyncObj's own transport sends, which loads `cryptography`: 8 MiB of each
node's memory.
"""

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def _leave_out_encryption() -> None:
    """Before PySyncObj is imported: without `cryptography` it says that it cannot encrypt, too."""
    stand_in: Any = SimpleNamespace(HAS_CRYPTO=False, getEncryptor=None)
    sys.modules.setdefault("pysyncobj.encryptor", stand_in)


_leave_out_encryption()

import pysyncobj.syncobj as pysyncobj_module  # noqa: E402
from pysyncobj.version import VERSION  # noqa: E402

REQUIRED_VERSION = "0.3.17"
REQUIRED_SHA256 = "e8bdf06797085d734df86e24ab4802fe87893dff77268565ec036f7ad4a1cfe4"


class WrongPySyncObjError(ImportError):
    """PySyncObj is not the release that the overrides were written and tested against."""


def check(version: str, source: Path) -> None:
    """Raise WrongPySyncObjError unless `version` and the hash of `source` are the expected ones."""
    if version != REQUIRED_VERSION:
        raise WrongPySyncObjError(
            f"pysyncobj {version} is installed, but muster needs exactly {REQUIRED_VERSION}: "
            f"pip install pysyncobj=={REQUIRED_VERSION}"
        )
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    if digest != REQUIRED_SHA256:
        raise WrongPySyncObjError(
            f"{source} is not the file of pysyncobj {REQUIRED_VERSION} (sha256 {digest}): "
            f"pip install --force-reinstall pysyncobj=={REQUIRED_VERSION}"
        )


def _no_clock() -> float:
    raise RuntimeError("no driver has set PySyncObj's clock: call pysyncobj_pin.use_clock first")


def use_clock(read: Callable[[], float]) -> None:
    """From now on PySyncObj's time is `read()`: monotonic seconds, greater than 0.

    Several nodes may live in one process (tests, the simulator), so each driver calls this whenever
    it is entered.
    """
    pysyncobj_module.monotonicTime = read


class _NoPoller:
    """SyncObj polls at the end of each tick; sockets are the transport's business."""

    def poll(self, timeout: float) -> None: ...


def _create_poller(_kind: str) -> _NoPoller:
    return _NoPoller()


def _install() -> None:
    source = pysyncobj_module.__file__
    if source is None:
        raise WrongPySyncObjError("pysyncobj has no source file to check")
    check(VERSION, Path(source))
    use_clock(_no_clock)
    pysyncobj_module.createPoller = _create_poller


_install()
