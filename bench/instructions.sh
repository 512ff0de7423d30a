#!/usr/bin/env bash
# Counts the instructions of what every lock costs and compares them with bench/instructions.toml.
# Exit 1 if one is more than a tenth above; `bench/instructions.sh --renew` accepts today's counts.
# Needs valgrind, which it installs where there is apt.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v valgrind >/dev/null; then
    sudo=''
    [ "$(id -u)" = 0 ] || sudo=sudo
    if ! { $sudo apt-get update -qq && $sudo apt-get install -y -qq valgrind; } >/dev/null; then
        echo 'error: valgrind is missing and apt cannot install it; install it by hand' >&2
        exit 2
    fi
fi

# Without the rest of the workspace, shared packages would be built again with other features.
# What is built in pieces, for quick rebuilds, is optimised differently from run to run.
CARGO_INCREMENTAL=0 exec cargo bench --quiet --locked --workspace --bench instructions \
    --profile dev --config bench/instructions.profile.toml -- "$@"
