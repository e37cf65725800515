# Sourced by the other scripts: find what a step needs, install it where apt can, else say in one sentence what is missing.

say() { printf '\033[1m==> %s\033[0m\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Runs apt-get as root, or through sudo if that asks for no password or can ask for one.
apt_install() {
    local why=$1
    shift
    command -v apt-get >/dev/null || die "$why; install $* with your system's package manager"
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || die "$why; run as root: apt-get install $*"
        as_root=(sudo)
    fi
    say "$why: installing $*"
    local log
    log=$(mktemp)
    {
        "${as_root[@]}" apt-get update -qq &&
            "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
    } >"$log" 2>&1 || { cat "$log" >&2; die "apt-get could not install $*"; }
    rm -f "$log"
}

need_rust() {
    if ! command -v cargo >/dev/null && [ -x "$HOME/.cargo/bin/cargo" ]; then
        PATH="$HOME/.cargo/bin:$PATH"
    fi
    command -v cargo >/dev/null || die "cargo is missing; install Rust 1.88 or newer from https://rustup.rs"
    local minor
    minor=$(rustc --version | sed -n 's/^rustc 1\.\([0-9]*\)\..*/\1/p')
    [ -z "$minor" ] || [ "$minor" -ge 88 ] || die "rustc 1.$minor is too old; infergw needs 1.88 or newer (rustup update)"
}

# libzmq is built from vendored source, which takes a C++ compiler.
need_cxx() {
    command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null ||
        apt_install "a C++ compiler is needed to build libzmq" g++
}

need_python() {
    command -v python3 >/dev/null || apt_install "Python 3 is needed" python3
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        die "python3 is $(python3 -V 2>&1), older than 3.11; put a newer one first in PATH"
}

# Debian ships Python without the part of venv that brings pip.
need_venv() {
    need_python
    python3 -c 'import venv, ensurepip' 2>/dev/null || apt_install "Python's venv module is incomplete" python3-venv
}

# A pip, or a venv that will bring one.
need_pip() {
    need_python
    python3 -c 'import pip' 2>/dev/null || [ -x "${INFERGW_VENV:-.venv}/bin/pip" ] || need_venv
}
