"""Why a backup cannot be taken, read or restored."""


class BackupError(Exception):
    """What was asked cannot be done. The message says why; nothing was changed."""


class UsedTicketError(BackupError):
    """A ticket has made a node of another data directory, or of another list of nodes."""


class ArchiveError(BackupError):
    """A file of a backup is damaged, hostile, or of a later build. The message names the file."""
