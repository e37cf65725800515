#!/usr/bin/env bash
# Installs the npm client of the tests, pinned, in $INFERGW_VENV/node. Without Node.js, or without the registry, it says so and
# the tests of that client are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/need.sh

place=${INFERGW_VENV:-.venv}/node
if ! command -v npm >/dev/null || ! command -v node >/dev/null; then
    say "Node.js is missing: the tests of the npm client will be SKIPPED (install nodejs and npm to run them)"
    exit 0
fi
want=$(sha256sum <tests/e2e/node/package-lock.json)
[ "$(cat "$place/.stamp" 2>/dev/null)" != "$want" ] || exit 0
mkdir -p "$place"
cp tests/e2e/node/package.json tests/e2e/node/package-lock.json "$place"
if (cd "$place" && npm ci --ignore-scripts --omit=peer --no-audit --no-fund --silent); then
    printf '%s' "$want" >"$place/.stamp"
else
    say "the npm registry cannot be reached: the tests of the npm client will be SKIPPED"
fi
