#!/bin/sh
# Unpack Debian's prometheus package (with promtool) into the directory given: no root, no service.
#   deploy/prometheus/fetch.sh DIR
# Where it cannot be had this fails with one line; nothing is skipped.
set -eu
dir=$1
fail() {
    echo "no Prometheus: $1" >&2
    exit 1
}
for tool in apt-get dpkg; do
    command -v "$tool" >/dev/null || fail "there is no $tool on this machine to take Debian's package with"
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
if ! apt-get -qq download prometheus >log 2>&1; then
    # The system's package lists may be empty: fetch lists of our own.
    mkdir -p lists/partial cache/archives/partial
    own="-o Dir::State::lists=$work/lists -o Dir::Cache=$work/cache -o APT::Sandbox::User="
    # shellcheck disable=SC2086  # several options
    apt-get -qq $own update >>log 2>&1 || fail "$(tail -1 log)"
    # shellcheck disable=SC2086
    apt-get -qq $own download prometheus >>log 2>&1 || fail "$(tail -1 log)"
fi
cd - >/dev/null
rm -rf "$dir"
mkdir -p "$dir"
dpkg -x "$work"/prometheus_*.deb "$dir" || fail "the package cannot be unpacked"
"$dir/usr/bin/prometheus" --version >/dev/null 2>&1 || fail "the unpacked program does not run here"
touch "$dir/.unpacked"
