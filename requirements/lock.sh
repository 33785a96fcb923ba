#!/bin/sh
# Renew the lock files: exact versions with hashes for CPython 3.11 on Linux.
set -eu
cd "$(dirname "$0")"
tools=../.venv-lock
[ -x "$tools/bin/uv" ] || { "${PYTHON:-python3.11}" -m venv "$tools"; "$tools/bin/python" -m pip install --quiet uv; }
compile() {
    "$tools/bin/uv" pip compile --quiet --python-version 3.11 --python-platform x86_64-manylinux_2_28 --generate-hashes --no-emit-find-links --no-emit-index-url \
        --custom-compile-command requirements/lock.sh "$@"
}
compile --allow-unsafe build.in -o build.txt
compile dev.in -o dev.txt
compile user.in -c dev.txt -o user.txt
compile server-floor.in -o server-floor.txt
compile --allow-unsafe proto.in -o proto.txt
compile --allow-unsafe audit.in -o audit.txt
compile sdk-floor.in -o sdk-floor.txt
compile sdk-newest.in -o sdk-newest.txt
