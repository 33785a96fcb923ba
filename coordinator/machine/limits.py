"""The maxima and defaults that `decide` reads, in one value that all replicas share (arch-5).

An entry names the version of the limits it was proposed under, so that a later change of a number
cannot make two replicas decide differently.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class Limits:
    """Maxima of messages, maps and queues; bounds of timeouts; defaults. Text counts as UTF-8."""

    client_message_max_bytes: int = 4 * MIB
    command_max_bytes: int = 512 * KIB
    sync_max_bytes: int = 700 * KIB
    """Bytes of a SyncGroup: an assignment vector, and the ids of its members (docs/adr/0010)."""
    id_max_bytes: int = 249
    """Group id, member id, instance id, topic name."""
    reason_max_chars: int = 255
    """A longer reason is cut, not refused (KIP-800)."""
    member_metadata_max_bytes: int = 64 * KIB
    """Bytes that one member brings: names and metadata of its protocols, and the topics it
    names."""
    member_max_protocols: int = 100
    """From rules 2 on; a frontend refuses more whatever the rules."""
    group_metadata_max_bytes: int = 3 * MIB
    """Bytes that all members of a group bring; from rules 2 on with their ids, and an overhead each
    (state.naming_bytes)."""
    member_assignment_max_bytes: int = 64 * KIB
    assignments_max_bytes: int = 512 * KIB
    offset_metadata_max_bytes: int = 4096
    commit_max_partitions: int = 1_000
    group_max_offsets: int = 100_000
    """Partitions that a group has offsets of; from rules 2 on."""
    commit_blob_max_bytes: int = 4_096
    offset_delete_max_partitions: int = 1_000
    sweep_max_partitions: int = 1_000
    """Partitions of one group in one command of a sweep; the rest goes in the next."""
    offset_retention_ms: int = 7 * 24 * 60 * 60 * 1000
    offset_retention_max_ms: int = 3_650 * 24 * 60 * 60 * 1000
    """The longest retention that a group may set for itself; 0 = for ever."""
    group_max_members: int = 2_000
    group_max_pending: int = 2_000
    """Member ids handed out and not used yet."""
    shard_max_groups: int = 100_000
    """Watched before a command is proposed: what is in flight may overshoot it by one queue."""
    max_topics: int = 10_000
    topic_max_partitions: int = 10_000
    max_nodes: int = 1_000
    max_acl_rules: int = 10_000
    alter_acls_max_rules: int = 100
    """Rules that one call adds and removes."""
    max_tokens: int = 10_000
    """Bearer tokens, with those that have expired and were not removed yet."""
    token_max_scopes: int = 16
    max_quotas: int = 5_000
    """Values: of one entity and one key each."""
    alter_quotas_max: int = 100
    """Values that one call changes."""
    max_parked_calls: int = 10_000
    max_held_heartbeats: int = 32_768
    held_heartbeats_per_connection: int = 512
    """Fewer where many are held: one for each 48 places that are left."""
    held_members_per_connection: int = 8_192
    """Members named by the heartbeats that one connection has held."""
    held_heartbeats_per_member: int = 8
    untaken_connection_max_bytes: int = 4 * MIB
    """Bytes of answers that one connection has not taken; the last one may exceed it."""
    untaken_max_bytes: int = 32 * MIB
    """Bytes of answers that a node's connections have not taken."""
    queue_max_commands: int = 4_096
    queue_max_bytes: int = 8 * MIB
    held_changes_max: int = 2_000
    """Calls of a shard that would change modern groups, and wait until plans of these are
    stored."""
    held_changes_max_bytes: int = 4 * MIB
    """Bytes of these calls."""
    queue_max_partitions: int = 5_000
    """That callers' commands in a shard's queue name: what applying them takes, in some 20 ms."""
    entry_max_partitions: int = 1_000
    """That the commands of one log entry name: so it is applied in a few ms. (A group with 100,000
    offsets that is deleted fills one, and takes 20.)"""
    session_timeout_min_ms: int = 1_000
    session_timeout_max_ms: int = 30 * 60 * 1000
    session_timeout_ms: int = 10_000
    heartbeat_interval_ms: int = 2_000
    disconnect_grace_ms: int = 2_000
    initial_delay_ms: int = 500
    initial_delay_max_ms: int = 5 * 60 * 1000
    """The longest initial delay that a group may set for itself."""
    alter_config_max_settings: int = 100
    modern_max_partitions: int = 100_000
    """Partitions of all topics that a modern group reads."""
    topic_zones_max_bytes: int = 16 * KIB
    """Bytes of the zones of one topic's partitions, as text (zones.py)."""
    all_zones_max_bytes: int = 1024 * KIB
    """Bytes of the zones of all topics; a modern group knows those of the ones that it reads."""
    partition_max_zones: int = 8
    """Zones that one partition is in."""
    note_zones_max_bytes: int = 64 * KIB
    """Bytes of zones in one command that tells a modern group of topics."""
    note_topics_max: int = 1_000
    """Topics, and names of patterns, in one command that tells a modern group of them."""
    reconcile_max_partitions: int = 1_000
    """Partitions whose grants one command changes, or whose owners a part of a target does: a few
    ms."""
    reconcile_max_members: int = 50
    """Members whose grants one command changes: each has an event and a record, and takes 0.1 ms.
    Those that wait for what is released beside these are noted in one event, in 1 us each."""
    member_max_topics: int = 1_000
    """Topics that a member of a modern group names."""
    pattern_max_bytes: int = 1_024
    """Bytes of the regular expression by which a member of a modern group subscribes."""
    pattern_max_topics: int = 1_000
    """Topics that one pattern stands for; those that it stood for before stay."""
    group_max_patterns: int = 32
    """Different patterns of the members of one modern group."""
    member_grant_epochs: int = 32
    """Epochs at which grants of a member of a modern group began, that are known apart; grants that
    began before count as of the first of them."""
    away_max_ms: int = 10 * 60 * 1000
    """For so long a member of a modern group may be away and keep what it has."""
    away_longest_ms: int = 24 * 60 * 60 * 1000
    """The longest such time that a group may set for itself."""
    colocate_max_topics: int = 100
    """Topics in all the sets of topics that a group's setting co-locates."""
    colocate_max_bytes: int = 4 * KIB
    """Bytes of that setting."""
    weights_max_entries: int = 200
    """Entries of a group's setting of what partitions weigh."""
    weights_max_bytes: int = 4 * KIB
    """Bytes of that one."""
    park_max_ms: int = 25_000


LIMITS = Limits()
LIMITS_VERSION = 1

LIMITS_BY_VERSION: Mapping[int, Limits] = MappingProxyType({LIMITS_VERSION: LIMITS})
"""An entry that names another version is refused by the codec."""
