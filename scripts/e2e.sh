#!/usr/bin/env bash
# Runs the Python end-to-end tests on $INFERGW_BIN, by default the debug build; arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${INFERGW_BIN:-}" ]; then
    target=$(cargo metadata --format-version 1 --no-deps | python3 -c 'import json,sys; print(json.load(sys.stdin)["target_directory"])')
    export INFERGW_BIN=$target/debug/infergw
fi
# A hang ends the run; each request in the tests has its own, much shorter limit.
exec timeout --foreground 30m "${INFERGW_VENV:-.venv}/bin/python" -m pytest tests/e2e -p no:cacheprovider "$@"
