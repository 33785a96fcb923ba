"""Every kind of worker, by its name in a brief."""

from musterd.chaos.workloads.admin import Admin
from musterd.chaos.workloads.base import Worker
from musterd.chaos.workloads.cleaner import Cleaner
from musterd.chaos.workloads.final import Final
from musterd.chaos.workloads.many import Many
from musterd.chaos.workloads.member import Members
from musterd.chaos.workloads.offsets import Reads, Simple
from musterd.chaos.workloads.probe import Probe
from musterd.chaos.workloads.pulse import Pulse
from musterd.chaos.workloads.recreated import Recreated
from musterd.chaos.workloads.replay import Replay
from musterd.chaos.workloads.store import Stores
from musterd.chaos.workloads.watcher import Watcher

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
