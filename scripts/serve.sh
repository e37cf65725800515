#!/usr/bin/env bash
# Serves the demo model with the release build and, once it is ready, says what to try. INFERGW_LISTEN moves it.
set -euo pipefail
cd "$(dirname "$0")/.."
listen=${INFERGW_LISTEN:-127.0.0.1:8080}
target=$(cargo metadata --format-version 1 --no-deps | python3 -c 'import json,sys; print(json.load(sys.stdin)["target_directory"])')

# Waits for readiness beside the gateway; ends by itself when the gateway does not come up.
hint() {
    python3 - "http://$listen" <<'PY' || return 0
import sys, time, urllib.request
for _ in range(600):
    try:
        urllib.request.urlopen(sys.argv[1] + "/readyz", timeout=1)
        break
    except OSError:
        time.sleep(0.2)
else:
    sys.exit(1)
PY
    cat >&2 <<TEXT

  Ready. In another terminal, try:

    curl http://$listen/v1/chat/completions -H 'content-type: application/json' \\
      -d '{"model":"smollm2-135m","messages":[{"role":"user","content":"Name three colours."}],"max_tokens":40}'

    # three identical questions at once: the engine generates one answer, all three stream it
    for i in 1 2 3; do curl -sN http://$listen/v1/chat/completions -H 'content-type: application/json' \\
      -d '{"model":"smollm2-135m","messages":[{"role":"user","content":"identical"}],"stream":true,"max_tokens":60}' & done; wait

  Ctrl-C stops it.

TEXT
}
hint &
exec "$target/release/infergw" serve --listen "$listen" --demo "$INFERGW_DEMO_MODEL"
