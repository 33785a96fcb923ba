"""The first message on a peer connection: who is calling, and why it may be turned away."""

from typing import Final

from muster.v1 import peer_pb2 as pb
from musterd.raft.identity import STORE_UUID_BYTES, Identity
from musterd.raft.lives import RUN_ID_BYTES
from musterd.raft.peer_levels import Levels, levels_of
from musterd.raft.peers import PeerBook, Replacement
from musterd.storage.life import STARTS_MAX
from musterd.storage.store import Store

ENDPOINT_BYTES_MAX = 300


def make_hello(
    identity: Identity,
    book: PeerBook,
    store: Store,
    client_endpoint: str,
    lane: "pb.Lane.ValueType",
    run_id: bytes,
    levels: Levels,
) -> pb.Hello:
    """Return this node's description of itself; `run_id` names its process."""
    loss = book.loss(identity.node_id)
    return pb.Hello(
        format=identity.format,
        cluster_id=identity.cluster_id,
        node_id=identity.node_id,
        store_uuid=identity.store_uuid,
        shards=identity.shards,
        nodes=identity.nodes,
        client_endpoint=client_endpoint,
        lane=lane,
        run_id=run_id,
        replacements=[
            pb.Replacement(node_id=one.node, store_uuid=one.store_uuid, as_of=one.as_of)
            for one in book.replacements()
        ],
        known=[
            *(pb.StoreOf(node_id=node, store_uuid=uuid) for node, uuid in book.known()),
            levels.encode(),
        ],
        life=store.life,
        starts=[pb.Start(life=one.life, epoch=one.epoch) for one in store.starts],
        lost_life=0 if loss is None else loss.life,
        loss_accepted=loss is not None and loss.accepted,
    )


def refusing(hello: pb.Hello, reason: str) -> pb.Hello:
    """Return what is said to somebody who is turned away: levels, and of stores nothing."""
    return pb.Hello(
        format=hello.format,
        cluster_id=hello.cluster_id,
        node_id=hello.node_id,
        lane=hello.lane,
        known=[levels_of(hello).encode()],
        refused=reason,
    )


NO_LANE: Final = "names no lane"
TAKES_NO_CALLS: Final = "this node takes no calls that others pass on"
BY_TLS_ALONE: Final = "calls are passed on by TLS alone, but on loopback: see peer_tls"


def takes_no_calls(reason: str) -> bool:
    """Whether a node refuses connections that carry calls for good, by what it says.

    An earlier build knows no such lane. Any other refusal is one of the node, or of a moment.
    """
    return any(one in reason for one in (NO_LANE, TAKES_NO_CALLS, BY_TLS_ALONE))


def refusal(identity: Identity, book: PeerBook, hello: pb.Hello, own: Levels) -> str | None:
    """Why the sender of `hello` must not be talked to; None if it may. `own`: of this node."""
    reasons = (
        _stranger(identity, hello),
        _malformed(hello),
        own.refusal(hello),
        _uuid_refusal(book, hello),
    )
    return next((reason for reason in reasons if reason is not None), None)


def _stranger(identity: Identity, hello: pb.Hello) -> str | None:
    node = hello.node_id
    if hello.format != identity.format:
        return f"node {node} speaks format {hello.format}, this node {identity.format}"
    if hello.cluster_id != identity.cluster_id:
        return (
            f"node {node} belongs to cluster {hello.cluster_id!r}, this node to "
            f"{identity.cluster_id!r}: check --peers and the data directories"
        )
    if node == identity.node_id or node not in identity.nodes:
        return f"node id {node} is not one of this node's peers {list(identity.peers)}"
    if hello.shards != identity.shards or tuple(hello.nodes) != identity.nodes:
        return (
            f"node {node} was initialised with {hello.shards} shards and nodes "
            f"{list(hello.nodes)}, this node with {identity.shards} and {list(identity.nodes)}: "
            "the one that is new belongs on an empty directory, by `muster init --bootstrap`"
        )
    return None


def _malformed(hello: pb.Hello) -> str | None:
    if len(hello.store_uuid) != STORE_UUID_BYTES:
        return f"node {hello.node_id} presents no store uuid"
    if len(hello.client_endpoint) > ENDPOINT_BYTES_MAX:
        length = len(hello.client_endpoint)
        return f"node {hello.node_id} advertises an endpoint of {length} characters"
    if hello.lane not in (pb.LANE_CONTROL, pb.LANE_BULK, pb.LANE_FORWARD):
        return f"node {hello.node_id} {NO_LANE}"
    if len(hello.run_id) != RUN_ID_BYTES:
        return f"node {hello.node_id} does not name its process"
    if len(hello.starts) > STARTS_MAX:
        return f"node {hello.node_id} names {len(hello.starts)} starts, {STARTS_MAX} at most"
    return None


def _uuid_refusal(book: PeerBook, hello: pb.Hello) -> str | None:
    node, store_uuid = hello.node_id, hello.store_uuid
    known = book.store_uuid(node)
    if known is None or known == store_uuid:
        return None
    return (
        f"node {node} presents store {_shown(store_uuid)}, but its store is {_shown(known)}: its "
        "data directory was wiped or swapped. If that is meant: "
        f"`muster cluster replace-node {node}`"
    )


def _shown(store_uuid: bytes) -> str:
    """The beginning of a store's uuid: whoever is told all of it could pass for the node."""
    return store_uuid.hex()[:8]


def replacements(identity: Identity, hello: pb.Hello) -> list[Replacement]:
    """Return the replaced stores that the sender, once it is welcome, tells of."""
    return [
        Replacement(one.node_id, one.store_uuid, one.as_of)
        for one in hello.replacements
        if one.node_id in identity.nodes and len(one.store_uuid) == STORE_UUID_BYTES
    ]


def is_another_store(identity: Identity, book: PeerBook, hello: pb.Hello) -> bool:
    """Whether the sender is a node of this cluster in another store than the one known here."""
    known = book.store_uuid(hello.node_id)
    return (
        hello.cluster_id == identity.cluster_id
        and hello.node_id in identity.peers
        and len(hello.store_uuid) == STORE_UUID_BYTES
        and known is not None
        and known != hello.store_uuid
    )
