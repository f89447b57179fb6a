#!/usr/bin/env bash
# Write constraints.txt anew: the versions that pip chooses today for the package with its extras,
# in a fresh environment of the Python that the image has.
#
#   deploy/renew-constraints.sh [PYTHON]
set -euo pipefail

cd "$(dirname "$0")/.."
wanted=$(sed -n 's/^ARG BASE=python:\([0-9]*\.[0-9]*\).*/\1/p' deploy/Dockerfile)
python=${1:-python$wanted}
command -v "$python" > /dev/null || { echo "$python is not installed: name a Python $wanted." >&2; exit 1; }
found=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[[ $found == "$wanted" ]] || { echo "$python is Python $found, but the image has $wanted: name one of that version." >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
# A copy: building in place would leave files here.
mkdir "$work/source"
cp -r LICENSE README.md pyproject.toml spore_dask "$work/source"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    setuptools "$work/source[formats,s3,slurm,kubernetes]"
{
    echo "# Every version in the image, and of what Slurm and Kubernetes need beside it. Written by"
    echo "# renew-constraints.sh, with Python $wanted."
    "$work/venv/bin/pip" freeze --all --exclude pip --exclude spore-dask
} > "$work/constraints.txt"
mv "$work/constraints.txt" deploy/constraints.txt
