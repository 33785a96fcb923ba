"""Folders that hold backups, and the one of a directory; s3.py has that of a bucket.

A name is never taken from a file that was read. A file that is not finished has another name, or
none, so whoever lists a folder sees whole files alone.
"""

import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from musterd.backup.errors import BackupError

NAMES_MAX: Final = 100_000
"""Entries of a folder that are looked at."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class Folder(Protocol):
    """A folder of files. Its methods raise BackupError where it cannot be used."""

    @property
    def url(self) -> str:
        """The folder as a person writes it."""
        ...

    def folder(self, name: str) -> "Folder":
        """The folder of this name in it, whether or not it exists."""
        ...

    def root(self) -> "Folder":
        """The folder that this one is in; itself where it is in none."""
        ...

    def folders(self) -> list[str]:
        """Names of the folders in it, sorted."""
        ...

    def files(self) -> list[str]:
        """Names of the finished files in it, sorted."""
        ...

    def open(self, name: str) -> BinaryIO:
        """Open a file to read it. Raises BackupError where there is none."""
        ...

    def create(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Give a context with a file to write: there, durable and whole, once the context ends."""
        ...

    def claim(self, name: str, content: bytes) -> bool:
        """Make a file that nobody has made before; False where somebody has."""
        ...


def checked(name: str) -> str:
    """Return `name`. Raises BackupError where it could lead out of its folder."""
    if not is_name(name):
        raise BackupError(f"{name[:80]!r} cannot be the name of a file of a backup")
    return name


def is_name(name: str) -> bool:
    """Whether this can be the name of a file or folder of a backup."""
    return _NAME.fullmatch(name) is not None


class Directory:
    """A `Folder` in a file system."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def url(self) -> str:
        return str(self._path)

    def folder(self, name: str) -> "Directory":
        return Directory(self._path / checked(name))

    def root(self) -> "Directory":
        """The directory that this one is in, links followed."""
        return Directory(self._path.resolve().parent)

    def folders(self) -> list[str]:
        """Names of the folders in it that a backup can have, sorted."""
        return self._names(want_folders=True)

    def files(self) -> list[str]:
        return self._names(want_folders=False)

    def _names(self, *, want_folders: bool) -> list[str]:
        found = []
        try:
            with os.scandir(self._path) as entries:
                for count, entry in enumerate(entries):
                    if count >= NAMES_MAX:
                        raise BackupError(f"{self._path} has more than {NAMES_MAX} entries")
                    if entry.is_dir() == want_folders and is_name(entry.name):
                        found.append(entry.name)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise BackupError(f"{self._path} cannot be read: {error}") from error
        return sorted(found)

    def open(self, name: str) -> BinaryIO:
        path = self._path / checked(name)
        try:
            return path.open("rb")
        except FileNotFoundError as error:
            raise BackupError(f"{path} is not there") from error
        except OSError as error:
            raise BackupError(f"{path} cannot be read: {error}") from error

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """Write, fsync, rename, fsync the folder."""
        path = self._path / checked(name)
        unfinished = path.with_name(f".unfinished-{name}")
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            with unfinished.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
            self._sync()
        except OSError as error:
            raise BackupError(f"{path} cannot be written: {error}") from error
        finally:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)

    def claim(self, name: str, content: bytes) -> bool:
        path = self._path / checked(name)
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            self._sync()
        except FileExistsError:
            return False
        except OSError as error:
            raise BackupError(f"{path} cannot be written: {error}") from error
        return True

    def _sync(self) -> None:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
