#!/usr/bin/env bash
# `make test`: every check in order, each even if an earlier one failed, then one summary. `test.sh lint` stops before the tests.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/need.sh

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
summary=()
passed=0
failed=0

# step NAME COMMAND...: run it, keep its output in $logs/NAME, remember how it went and how long it took.
step() {
    local name=$1 start=$SECONDS outcome=ok
    shift
    say "$name"
    "$@" 2>&1 | tee "$logs/$name"
    [ "${PIPESTATUS[0]}" -eq 0 ] || outcome=FAILED
    summary+=("$(printf '%-10s %-7s %4d s' "$name" "$outcome" $((SECONDS - start)))")
    [ "$outcome" = ok ]
}

# A step that is one check: it passes or fails as a whole.
check() {
    if step "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

# A step that runs a test runner: its own counts are added; a runner that dies without a failed test (a build error) counts as one.
tests() {
    local fine=0 good bad
    step "$@" || fine=1
    good=$(counts passed "$logs/$1")
    bad=$(($(counts failed "$logs/$1") + $(counts error "$logs/$1")))
    [ "$fine" -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
    [ "$good" -gt 0 ] || [ "$fine" -ne 0 ] || [ "$1" = doctests ] || bad=1
    passed=$((passed + good))
    failed=$((failed + bad))
}

# Sums "N passed" (or failed, or errors) in the summary lines of nextest ("Summary ..."), cargo test ("test result: ...") and pytest ("== ... in 1.2s ==").
counts() {
    sed -E 's/\x1b\[[0-9;]*m//g' "$2" | grep -E '^ *Summary \[|^test result: |^=+ .* in [0-9.]+s.*=+$|^[0-9]+ (passed|failed|error).* in [0-9.]+s' |
        grep -oE "[0-9]+ $1" | awk '{ n += $1 } END { print n + 0 }'
}

finish() {
    printf '\n'
    printf '  %s\n' "${summary[@]}"
    printf '%d passed, %d failed\n' "$passed" "$failed"
    [ "$failed" -eq 0 ]
    exit
}

check fmt cargo fmt --all --check
check licences python3 scripts/licences.py
if command -v cargo-deny >/dev/null; then
    check deny cargo deny --offline check licenses bans sources
fi
check clippy cargo clippy --workspace --all-targets --locked -- -D warnings
check no-demo cargo clippy -p infergw --no-default-features --locked -- -D warnings
# Workspaces of their own, for cargo-fuzz; here they are only kept compiling.
check fuzz-wire cargo check --manifest-path crates/ts-wire/fuzz/Cargo.toml --locked --quiet
# Not locked: its lock follows the gateway's dependencies.
check fuzz-gateway cargo check --manifest-path crates/infergw/fuzz/Cargo.toml --quiet
check rustdoc env RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --locked --quiet
[ "${1:-}" != lint ] || finish

if cargo nextest --version >/dev/null 2>&1; then
    tests rust cargo nextest run --workspace --locked --no-fail-fast --status-level slow --final-status-level fail
else
    tests rust cargo test --workspace --locked --no-fail-fast --lib --bins --tests
fi
tests doctests cargo test --workspace --locked --doc --quiet
tests e2e scripts/e2e.sh -q
finish
