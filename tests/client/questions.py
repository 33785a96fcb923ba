"""FindCoordinator as the nodes of the in-memory cluster saw it."""


async def asked_so_far(client, cluster) -> int:
    """How many questions the nodes have seen, once all that were sent have come.

    Two nodes are asked at once and the first answer is taken: the other question may still be on
    its way when a call that needed it has returned.
    """
    await cluster.until(
        lambda: len(cluster.seen("FindCoordinator")) == client.counters.find_coordinator
    )
    return client.counters.find_coordinator
