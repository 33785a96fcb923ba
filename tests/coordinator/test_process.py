"""What a node asks of Python's garbage collector."""

import subprocess
import sys

HELD = """
import gc, weakref
from coordinator.process import calm_collector, freeze_heap

class Call:
    pass

def held():
    calls = [Call() for _ in range(500)]
    for call in calls:
        call.cycle = call
    return calls

calm_collector()
freeze_heap()
calls = held()
seen = weakref.ref(calls[0])
young = [[] for _ in range(25_000)]  # the young are collected while the calls are held
calls = young = None
assert seen() is not None
allocated = 0
while seen() is not None and allocated < 10_000_000:
    some = [[] for _ in range(1_000)]
    for one in some:
        one.append(one)
    allocated += 1_000
print(allocated)
"""


def test_garbage_of_a_call_that_was_held_is_collected_soon():
    """Within 200,000 objects: 40,000 calls. A full collection would come 25,000 times later."""
    done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 200_000
