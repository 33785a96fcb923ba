"""Every kind of worker, by its name in a brief."""

from chaos.workloads.admin import Admin
from chaos.workloads.base import Worker
from chaos.workloads.cleaner import Cleaner
from chaos.workloads.final import Final
from chaos.workloads.many import Many
from chaos.workloads.member import Members
from chaos.workloads.offsets import Reads, Simple
from chaos.workloads.probe import Probe
from chaos.workloads.pulse import Pulse
from chaos.workloads.recreated import Recreated
from chaos.workloads.replay import Replay
from chaos.workloads.store import Stores
from chaos.workloads.watcher import Watcher

KINDS: dict[str, type[Worker]] = {
    "admin": Admin,
    "cleaner": Cleaner,
    "final": Final,
    "many": Many,
    "members": Members,
    "probe": Probe,
    "pulse": Pulse,
    "reads": Reads,
    "recreated": Recreated,
    "replay": Replay,
    "simple": Simple,
    "stores": Stores,
    "watcher": Watcher,
}
