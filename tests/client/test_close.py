"""What a client that was closed leaves behind in its process."""

import subprocess
import sys

LIVES = """
import asyncio, gc, weakref
import muster

async def life():
    async with muster.Client("127.0.0.1:1"):
        await asyncio.sleep(0)
    return weakref.ref(asyncio.get_running_loop())

lives = [asyncio.run(life()) for _ in range(6)]
gc.collect()
print(sum(one() is not None for one in lives))
"""


def test_a_closed_client_does_not_keep_its_loop():
    """Six loops, each with a client, one after the other: gRPC may still hold the last one."""
    done = subprocess.run([sys.executable, "-c", LIVES], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 1
    assert done.stderr == ""
