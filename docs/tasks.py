"""A fleet that shares named tasks, which come and go while it runs.

Workers, and then somebody who changes the tasks:

    python docs/tasks.py 127.0.0.1:7070 work &
    python docs/tasks.py 127.0.0.1:7070 work &
    python docs/tasks.py 127.0.0.1:7070 put news '{"url": "https://example.com", "every_s": 1}'
    python docs/tasks.py 127.0.0.1:7070 remove news
"""

import asyncio
import json
import sys
from typing import Any

import muster


async def work(tasks: muster.Tasks) -> None:
    """Do what this process is given, until SIGTERM."""

    @tasks.on_task
    async def poll(task: muster.Task) -> None:
        done = task.committed or 0
        while True:
            done += 1
            print(task.name, "visit", done, "of", task.config["url"], flush=True)
            task.commit(done)  # whoever has the task next goes on here
            await asyncio.sleep(task.config["every_s"])

    await tasks.run()


def configuration(text: str) -> dict[str, Any]:
    """What a task is told: a JSON object."""
    try:
        found = json.loads(text)
    except ValueError as error:
        sys.exit(f"{text!r} is no JSON: {error}")
    if not isinstance(found, dict):
        sys.exit(f"{text!r} is no JSON object")
    return found


async def main(addresses: str, command: str, *arguments: str) -> None:
    """`work`, `put NAME JSON`, `remove NAME` or `list`."""
    put = {arguments[0]: configuration(arguments[1])} if command == "put" else {}
    async with muster.Client(addresses) as client, client.tasks("pollers") as tasks:
        if command == "work":
            await work(tasks)
        elif command == "put":
            await tasks.put(put)
        elif command == "remove":
            await tasks.remove(*arguments)
        for name, one in (await tasks.definitions()).items() if command == "list" else ():
            print(name, json.dumps(one.config))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
