"""Why a backup cannot be taken, read or restored."""


class BackupError(Exception):
    """What was asked cannot be done. The message says why; nothing was changed."""


class ArchiveError(BackupError):
    """A file of a backup is damaged, hostile, or of a later build. The message names the file."""
