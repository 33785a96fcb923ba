import asyncio
import sqlite3
import sys
import muster

db = sqlite3.connect(sys.argv[2], isolation_level=None)  # any store that compares two numbers
db.execute("CREATE TABLE IF NOT EXISTS done (partition INT PRIMARY KEY, offset INT, token INT)")
WRITE = """INSERT INTO done VALUES (?, ?, ?) ON CONFLICT DO UPDATE
  SET offset = excluded.offset, token = excluded.token WHERE token <= excluded.token"""

async def main(addresses: str) -> None:
    async with muster.Client(addresses, tls=muster.Tls.from_environment()) as client:
        await client.create_topic("orders", 4, exist_ok=True)
        async with client.group("billing-eu", ["orders"]) as group:
            @group.on_partition  # one task per owned partition, cancelled when it is taken away
            async def work(p: muster.Partition) -> None:
                for offset in range(p.position or 0, 10_000):
                    if not db.execute(WRITE, (p.id, offset, p.fencing_token)).rowcount:
                        return print(p.topic, p.id, "is fenced: a later token has written")
                    print(p.topic, p.id, "offset", offset, "token", p.fencing_token, flush=True)
                    p.commit(offset + 1)  # the next offset to read; sent soon, and on revoke
                    await asyncio.sleep(0.2)  # the work
            await group.run()  # until SIGTERM
asyncio.run(main(sys.argv[1]))
