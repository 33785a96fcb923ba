import asyncio
import sys
import muster

async def main(addresses: str) -> None:
    async with muster.Client(addresses) as client:
        await client.create_topic("orders", 4, exist_ok=True)
        async with client.group("billing", ["orders"]) as group:
            @group.on_partition  # one task per owned partition, cancelled when it is taken away
            async def work(p: muster.Partition) -> None:
                for offset in range(p.position or 0, 100):
                    print(p.topic, p.id, "offset", offset, "fencing token", p.fencing_token)
                    p.commit(offset + 1)  # the next offset to read; sent soon, and on revoke
            await group.run()  # until SIGTERM
asyncio.run(main(sys.argv[1]))
