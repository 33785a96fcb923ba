"""One process at a time does the work, and the store refuses whoever did it before.

Run several of these, and kill or stop the one that leads:

    python docs/election.py 127.0.0.1:7070 state.db one &
    python docs/election.py 127.0.0.1:7070 state.db two &
"""

import asyncio
import contextlib
import sqlite3
import sys
import time

import muster


def say(*words: object) -> None:
    """Print a line in one piece: the loop and the working thread both do."""
    print(" ".join(map(str, words)) + "\n", end="", flush=True)


def write(path: str, token: int, name: str) -> None:
    """Work, and store the result, unless a later leader has stored something already.

    It runs in a thread, so nothing stops it half-way: where the process is stopped here and goes on
    a minute later, only the token tells the store that its time is over.
    """
    say(name, token, "works")
    time.sleep(1)
    with contextlib.closing(sqlite3.connect(path, timeout=10)) as store, store:
        store.execute("CREATE TABLE IF NOT EXISTS state (id INTEGER PRIMARY KEY, token, writer)")
        store.execute("INSERT OR IGNORE INTO state VALUES (1, 0, '')")
        taken = store.execute(
            "UPDATE state SET token = ?, writer = ? WHERE token <= ?", (token, name, token)
        )
    say(name, token, "wrote" if taken.rowcount else "was refused")


async def main(addresses: str, path: str, name: str, session_timeout_ms: int = 10_000) -> None:
    """Be a candidate; work while elected; tell who leads."""
    async with (
        muster.Client(addresses) as client,
        client.election("nightly", name, session_timeout_ms=session_timeout_ms) as election,
    ):

        async def lead(token: int) -> None:
            while True:
                await asyncio.to_thread(write, path, token, name)

        async def tell() -> None:
            async for leader in election.watch():
                say(name, "sees", leader and leader.value)

        telling = asyncio.create_task(tell())
        async for term in election:
            say(name, term.token, "leads")
            await term.run(lead(term.token))  # cancelled when the leadership is over
            say(name, term.token, "leads no more:", term.reason)
        await telling


if __name__ == "__main__":
    _, addresses, path, name, *session = sys.argv
    asyncio.run(main(addresses, path, name, *map(int, session)))
