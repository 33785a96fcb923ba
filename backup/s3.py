"""A folder of backups in an S3 bucket. Needs the extra `backup` (boto3).

Where the bucket is and who asks is boto3's own configuration: `AWS_ENDPOINT_URL`, `AWS_PROFILE`,
`AWS_ACCESS_KEY_ID` and so on. An object is there once it is whole, so nothing is renamed.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Final, cast

from musterd.backup.errors import BackupError
from musterd.backup.folders import NAMES_MAX, checked, is_name

SPOOLED_BYTES: Final = 8 * 1024 * 1024
"""A file that is written is on disk from this size on, until it is sent."""

_EXISTS: Final = frozenset({"PreconditionFailed", "ConditionalRequestConflict"})
_MISSING: Final = frozenset({"NoSuchKey", "404"})


class S3Folder:
    """A `Folder` whose files are the objects below one prefix."""

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix

    @classmethod
    def at(cls, bucket: str, prefix: str) -> "S3Folder":
        """The folder `prefix` of a bucket. Raises BackupError where boto3 is not installed."""
        try:
            import boto3  # noqa: PLC0415  # an extra, and slow to load
        except ModuleNotFoundError as error:
            raise BackupError(
                "boto3 is not installed: pip install 'muster-coordinator[backup]'"
            ) from error
        if not bucket:
            raise BackupError("s3:// needs a bucket: s3://BUCKET/FOLDER")
        return cls(boto3.client("s3"), bucket, prefix)

    @property
    def url(self) -> str:
        """The folder as a person writes it."""
        return f"s3://{self._bucket}/{self._prefix}"

    def folder(self, name: str) -> "S3Folder":
        """The folder of this name in it, whether or not it has objects."""
        return S3Folder(self._client, self._bucket, self._key(name))

    def root(self) -> "S3Folder":
        """The folder that this one is in; itself where it is the whole bucket."""
        return S3Folder(self._client, self._bucket, self._prefix.rpartition("/")[0])

    def folders(self) -> list[str]:
        """Names of the folders in it that a backup can have, sorted."""
        return self._names("CommonPrefixes", "Prefix")

    def files(self) -> list[str]:
        """Names of the objects in it, sorted."""
        return self._names("Contents", "Key")

    def open(self, name: str) -> BinaryIO:
        """Open an object to read it. Raises BackupError where there is none."""
        with _told(f"{self.url}/{checked(name)}"):
            answer = self._client.get_object(Bucket=self._bucket, Key=self._key(name))
        return cast("BinaryIO", _Body(answer["Body"], f"{self.url}/{name}"))

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """Give a file to write, which is sent once the context ends without an error."""
        key = self._key(name)
        with tempfile.SpooledTemporaryFile(SPOOLED_BYTES) as file:
            yield cast("BinaryIO", file)
            file.seek(0)
            with _told(f"{self.url}/{name}"):
                self._client.upload_fileobj(file, self._bucket, key)

    def claim(self, name: str, content: bytes) -> bool:
        """Make an object that nobody has made before; False where somebody has."""
        from botocore.exceptions import ClientError  # noqa: PLC0415  # as boto3

        key = self._key(name)
        with _told(f"{self.url}/{name}"):
            try:
                self._client.put_object(Bucket=self._bucket, Key=key, Body=content, IfNoneMatch="*")
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") in _EXISTS:
                    return False
                raise
        return True

    def _key(self, name: str) -> str:
        return "/".join(part for part in (self._prefix, checked(name)) if part)

    def _names(self, what: str, field: str) -> list[str]:
        prefix = f"{self._prefix}/" if self._prefix else ""
        found: list[str] = []
        with _told(self.url):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=prefix, Delimiter="/"
            )
            for page in pages:
                names = (one[field][len(prefix) :].rstrip("/") for one in page.get(what, ()))
                found += filter(is_name, names)
                if len(found) > NAMES_MAX:
                    raise BackupError(f"{self.url} has more than {NAMES_MAX} entries")
        return sorted(found)


class _Body:
    """An object's content as it arrives; a broken connection is told as a fault of the backup."""

    def __init__(self, body: Any, where: str) -> None:
        self._body = body
        self._where = where

    def read(self, size: int = -1) -> bytes:
        """The next bytes; fewer at the end."""
        with _told(self._where):
            return bytes(self._body.read(None if size < 0 else size))

    def close(self) -> None:
        """Take no more of it."""
        self._body.close()


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Within this, what S3 refuses is a BackupError that names the object."""
    from boto3.exceptions import Boto3Error  # noqa: PLC0415  # as boto3
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        what = "is not there" if code in _MISSING else f"cannot be used: {error}"
        raise BackupError(f"{where} {what}") from error
    except (Boto3Error, BotoCoreError) as error:
        raise BackupError(f"{where} cannot be used: {error}") from error
