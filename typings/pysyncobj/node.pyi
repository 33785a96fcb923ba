from typing import Any

class Node:
    _id: Any
    def __init__(self, id: Any, **kwargs: Any) -> None: ...
    @property
    def id(self) -> Any: ...
