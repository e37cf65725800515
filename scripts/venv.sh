#!/usr/bin/env bash
# Makes the Python environment of the tests in $INFERGW_VENV (default .venv), once per version of the pinned lists.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/need.sh
need_venv

venv=${INFERGW_VENV:-.venv}
lists=(scripts/requirements.txt scripts/requirements-nodeps.txt)
want=$(cat "${lists[@]}" | sha256sum | cut -d' ' -f1)-$(python3 -c 'import sys; print(sys.version_info[:2])')
if [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.stamp" 2>/dev/null)" = "$want" ]; then
    exit 0
fi
say "making the tests' Python environment in $venv (about 30 s)"
python3 -m venv --clear "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check -r scripts/requirements.txt
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r scripts/requirements-nodeps.txt
printf '%s' "$want" >"$venv/.stamp"
