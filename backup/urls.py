"""Which folder a URL means: a path, file:// or s3://."""

from pathlib import Path
from urllib.parse import urlsplit

from musterd.backup.errors import BackupError
from musterd.backup.folders import Directory, Folder


def open_folder(url: str) -> Folder:
    """The folder behind a path, a file:// URL or an s3:// URL. Raises BackupError."""
    parts = urlsplit(url)
    if parts.scheme == "s3":
        from musterd.backup.s3 import S3Folder  # noqa: PLC0415  # boto3 is an extra

        return S3Folder.at(parts.netloc, parts.path.strip("/"))
    if parts.scheme == "file":
        return Directory(Path(parts.path))
    if "://" in url:
        raise BackupError(f"{url}: a path, a file:// URL or an s3:// URL is needed")
    return Directory(Path(url))
