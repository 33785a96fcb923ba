"""What cold hunts cost: for builds that `make mutants` seeks on a known seed first.

`cold.json` is what `python -m chaos.mutants --cold --report chaos/mutants/cold.json` wrote.
"""

import json
from importlib.resources import files

from chaos.mutants.hunt import Caught

FILE = "cold.json"


def read() -> list[Caught]:
    """All of them, the longest hunt first: most seeds, then most seconds."""
    document = json.loads(files("chaos.mutants").joinpath(FILE).read_text("utf-8"))
    told = [{**one} for one in document["mutants"]]
    for one in told:
        del one["rule"]
        one["promises"] = tuple(one.get("promises", ()))
    found = [Caught(**one) for one in told]
    return sorted(found, key=lambda one: (-one.tried, -one.seconds))
