"""A process that is busy, for nothing: `python -m musterd.chaos.faults.busy`."""

from musterd.chaos import child


def main() -> None:
    """Run until it is killed; it ends with its parent in any case."""
    child.answer(ready=True)
    while True:
        pass


if __name__ == "__main__":
    main()
