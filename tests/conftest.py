"""What all tests share: `--rewrite`, which writes golden files anew, and `--conformance`."""

import os
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import stuck, turns
from tests.conformance import plugin
from tests.conformance.ledger import TESTDATA
from tests.docs.block_runners import left_out

MUSTERD = Path(__file__).parents[1] / "musterd"

# Read when grpc is imported. Its handlers kill the child of a fork now and then, and PySpark forks
# (Popen with preexec_fn) to start its JVM: test_forks.py.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# How long an example takes says how busy the machine is.
settings.register_profile("muster", deadline=None, print_blob=True)
settings.load_profile("muster")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest --rewrite`: read the diff before you commit it. CI refuses the flag."""
    parser.addoption(
        "--rewrite",
        action="store_true",
        default=False,
        help="write golden files anew instead of comparing them",
    )
    parser.addoption(
        "--quiet-machine",
        action="store_true",
        default=False,
        help="hold promised times, too, which a machine with other work cannot keep",
    )
    parser.addoption(
        "--without-streams",
        action="store_true",
        default=False,
        help="have the SDK make each call by itself, where a test does not say how",
    )
    plugin.add_option(parser)
    turns.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    """A run that rewrites its own expectations proves nothing."""
    rewrites = config.getoption("--rewrite") or config.getoption("--conformance") == "write"
    if rewrites and os.environ.get("CI"):
        raise pytest.UsageError("--rewrite and --conformance=write are forbidden where CI is set")
    if config.getoption("--without-streams"):
        import muster  # noqa: PLC0415 - after the variable above

        muster.Client.__init__.__kwdefaults__["streams"] = False
    plugin.configure(config)
    stuck.configure(config)


@pytest.hookimpl(trylast=True)  # after pytest-randomly
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files that start processes go first, then long ones: nobody waits for one at the end."""
    if (turn := config.getoption("--turn")) is not None:
        items[:], others = turns.select(items, turn)
        config.hook.pytest_deselected(items=others)
    files = {
        mark: {item.path for item in items if item.get_closest_marker(mark)}
        for mark in ("processes", "long")
    }
    items.sort(key=lambda item: [item.path not in marked for marked in files.values()])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A test that runs blocks of a page has run each of them."""
    try:
        result = yield
    except pytest.skip.Exception:
        _refuse_left_out(item.nodeid)
        raise
    _refuse_left_out(item.nodeid)
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test that no exception ends ends the run."""
    return (yield from stuck.watched(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """A failed test has ended the watch that began with it."""
    return (yield from stuck.watched(item))


def _refuse_left_out(test: str) -> None:
    missing = left_out(test)
    assert not missing, f"not run: {missing}"


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """True where golden files are to be written anew."""
    return bool(request.config.getoption("--rewrite"))


@pytest.fixture
def golden(record_property: Callable[[str, object], None], rewrite: bool) -> Callable[[Path], None]:
    """A golden test says which file it ran; that counts once the test has passed."""

    def ran(path: Path) -> None:
        if not rewrite:
            record_property(plugin.PROPERTY, path.relative_to(TESTDATA).as_posix())

    return ran


@pytest.fixture(scope="session")
def users_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: modules and packages of his own, with the names of our folders.

    Who imports one instead of ours ends with its name.
    """
    folder = tmp_path_factory.mktemp("users_modules")
    names = sorted(path.name for path in MUSTERD.iterdir() if path.is_symlink())
    for number, name in enumerate(names):
        module = folder / name / "__init__.py" if number % 2 else folder / f"{name}.py"
        module.parent.mkdir(exist_ok=True)
        module.write_text(f"raise ImportError('the user has a {name} of his own')\n")
    return folder
