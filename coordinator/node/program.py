"""`muster serve` as a program: a node without what its libraries load where they find it.

structlog loads rich, 4 MiB, to draw tracebacks in colour, which a node's log has in none of its
forms.
"""

import sys
from typing import Any

_ABSENT: Any = None
sys.modules["rich"] = _ABSENT

from musterd.coordinator.node.serve import main  # noqa: E402  # after it was left out

if __name__ == "__main__":
    main()
