#!/bin/sh
# Make a base image where no registry can be reached: Debian's own packages as a folder of files.
#   deploy/container/base.sh DIR
# Takes root and debootstrap. It is what debian:bookworm-slim has, and a little more.
set -eu
dir=$1
command -v debootstrap >/dev/null || { echo "no base: install Debian's package debootstrap" >&2; exit 1; }
rm -rf "$dir"
debootstrap --variant=minbase bookworm "$dir" http://deb.debian.org/debian >"$dir.log" 2>&1 || { tail -3 "$dir.log" >&2; exit 1; }
rm -rf "$dir"/var/cache/apt/archives/*.deb
touch "$dir/.made"
