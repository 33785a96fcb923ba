#!/bin/sh
# Generate muster/v1 from proto/ with an older pinned grpcio-tools, so that the code runs on protobuf >= 5.29 and
# grpcio >= 1.68 and worker fleets are not forced to the newest. Tools live in a virtual environment of their own.
# Usage: proto/generate.sh [OUTPUT_DIR]   (default: the repository)
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
out=${1:-$root}
tools="$root/.venv-proto"
if [ ! -e "$tools/.installed" ] || [ "$root/requirements/proto.txt" -nt "$tools/.installed" ]; then
    "${PYTHON:-python3.11}" -m venv "$tools"
    "$tools/bin/python" -m pip install --quiet --require-hashes -r "$root/requirements/proto.txt"
    touch "$tools/.installed"
fi
PATH="$tools/bin:$PATH"
export PATH
mkdir -p "$out"
python -m grpc_tools.protoc -I "$root/proto" \
    --python_out="$out" --grpc_python_out="$out" --mypy_out="$out" --mypy_grpc_out="$out" \
    "$root"/proto/muster/v1/*.proto
# Services exist in three files only; drop the empty service modules of the others.
for name in errors forward log peer plain_commit quota; do
    rm -f "$out/muster/v1/${name}_pb2_grpc.py" "$out/muster/v1/${name}_pb2_grpc.pyi"
done
