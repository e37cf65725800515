#!/usr/bin/env bash
# Renders real chat templates with the reference library into $INFERGW_VENV/goldens, for the parity test: some seventy templates that
# llama-cpp-python's source archive brings. `--update` makes the golden files of tests/goldens anew, from the templates there.
# Without the registry it says so, and the test of the fetched templates is skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/need.sh
need_venv

archive=llama-cpp-python==0.3.36
place=${INFERGW_VENV:-.venv}/goldens
want=$( (echo "$archive"; cat tests/goldens/*.py tests/goldens/requirements.txt) | sha256sum)
fetched() { [ "$(cat "$place/.stamp" 2>/dev/null)" = "$want" ]; }

render() { "$place/venv/bin/python" tests/goldens/make.py "$1" "$2" 2>/dev/null; }

library() {
    python3 -m venv "$place/venv" &&
        "$place/venv/bin/pip" install --quiet --disable-pip-version-check -r tests/goldens/requirements.txt
}

templates() {
    [ ! -d "$place/templates" ] || return 0
    local sources=$place/sources
    rm -rf "$sources"
    mkdir -p "$sources" &&
        "$place/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python -d "$sources" "$archive" &&
        tar xzf "$sources"/*.tar.gz -C "$sources" --wildcards '*/vendor/llama.cpp/models/templates/*.jinja' &&
        mv "$sources"/*/vendor/llama.cpp/models/templates "$place/templates" &&
        rm -rf "$sources"
}

if [ "${1:-}" = --update ]; then
    library
    render tests/goldens/templates tests/goldens/rendered
    exit
fi
fetched && exit 0
say "rendering chat templates with the reference library (about 40 s, once)"
rm -rf "$place/rendered" "$place/new"
mkdir -p "$place"
if library && templates && render "$place/templates" "$place/new"; then
    mv "$place/new" "$place/rendered"
    printf '%s' "$want" >"$place/.stamp"
else
    say "the package registry cannot be reached: the parity test of the fetched templates will be SKIPPED"
fi
