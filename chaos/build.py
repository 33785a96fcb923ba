"""Names the build of muster that a result was measured on, and when."""

import os
import subprocess
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path

GIT_S_MAX = 10.0
SHORT = 12
"""So many digits of a commit are shown."""
HERE = Path(__file__)


@dataclass(frozen=True, slots=True)
class Build:
    """The version and commit that ran, as far as they are known."""

    version: str | None
    """Of the package muster-coordinator, as `muster version` says it; None: not installed."""
    commit: str | None
    """40 hexadecimal digits, `-dirty` after them where tracked files differ; None: no clone."""
    at: str
    """When its command began, ISO 8601, UTC."""

    @property
    def named(self) -> str:
        """One line for people: the version and the shortened commit, or that they are not known."""
        digits, dash, dirty = (self.commit or "").partition("-")
        where = f"commit {digits[:SHORT]}{dash}{dirty}" if digits else "no commit known"
        return f"muster {self.version or 'not installed'}, {where}"

    @property
    def dated(self) -> str:
        """As `named`, and when it was built."""
        return f"{self.named}, {self.at}"

    def differs(self, other: "Build") -> bool:
        """Whether it is known to be another one: by the commits, else by the versions."""
        for mine, its in ((self.commit, other.commit), (self.version, other.version)):
            if mine is not None and its is not None:
                return mine != its
        return False


def here() -> Build:
    """That of this process, now. Never fails."""
    return Build(version(), commit(HERE), datetime.now(UTC).isoformat(timespec="seconds"))


def stamp() -> dict[str, str | None]:
    """The same for a JSON file."""
    return asdict(here())


def read(told: object) -> Build | None:
    """Return what `stamp` wrote; None: there is none, or not as it is written today."""
    names = {"version", "commit", "at"}
    if not isinstance(told, dict) or told.keys() != names or not isinstance(told["at"], str):
        return None
    if not all(told[name] is None or isinstance(told[name], str) for name in names):
        return None
    return Build(**told)


def version() -> str | None:
    """None: it is not installed."""
    with suppress(PackageNotFoundError):
        return version_of("muster-coordinator")
    return None


def commit(file: Path) -> str | None:
    """That of the clone which has this file under git; None: there is none, or no git."""
    if _git(file, "ls-files", "--error-unmatch", "--", file.name) is None:
        return None  # installed, and at most beside another project's files
    return _git(file, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(file: Path, *arguments: str) -> str | None:
    """Return git's output; None where it fails. It locks nothing, and heeds no hook."""
    argv = ["git", "--no-optional-locks", *arguments]
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            argv, cwd=file.parent, env=env, timeout=GIT_S_MAX, capture_output=True, check=True
        )
        return done.stdout.decode(errors="replace").strip()
    return None
