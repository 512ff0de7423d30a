#!/bin/sh
# Builds the fuzz targets and runs each for some seconds: run.sh [SECONDS [TARGET...]].
# Needs a nightly compiler and a C++ compiler, nothing else; cargo-fuzz works too.
set -eu
cd "$(dirname "$0")"
seconds=${1:-60}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- frame greeting record handle cluster keeper levels

host=$(rustc +nightly -vV | sed -n 's/^host: //p')
# What cargo-fuzz asks the compiler for, without the address sanitizer: the code has no unsafe.
flags="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4"
flags="$flags -Cllvm-args=-sanitizer-coverage-inline-8bit-counters"
flags="$flags -Cllvm-args=-sanitizer-coverage-pc-table"
flags="$flags -Cllvm-args=-sanitizer-coverage-trace-compares"
RUSTFLAGS="$flags" cargo +nightly build --release --target "$host"

for target in "$@"; do
    mkdir -p "corpus/$target" "artifacts/$target"
    seeds=../crates/wire/testdata/v1
    [ -d "seeds/$target" ] && seeds="seeds/$target"
    echo "== $target for $seconds s"
    # A frame is at most 1 MiB, so no honest input makes anything near this much memory.
    "target/$host/release/$target" "corpus/$target" "$seeds" \
        -max_total_time="$seconds" -rss_limit_mb=1024 -malloc_limit_mb=64 -timeout=10 \
        -max_len=65536 -artifact_prefix="artifacts/$target/" -print_final_stats=1
done
