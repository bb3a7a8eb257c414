#!/usr/bin/env bash
# Builds the fuzz targets with stable Rust and runs them: fuzz/run.sh SECONDS [TARGET…]
# With 0 seconds each target gets its seeds and what is made of them, the same every time. Otherwise each looks for so
# many seconds for what no earlier input reached, and keeps it in target/fuzz/corpus.
# An input that fails is in target/fuzz/found.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=$1
shift
targets=("$@")
[ $# -gt 0 ] || targets=(request fingerprint pointer issued_key structured_field cursor snapshot redis_reply)

host=$(rustc -vV | sed -n 's/^host: //p')
# What libFuzzer counts: every edge, and what is compared. The last tells the crates that this is such a build.
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing"
# With the versions that the product is locked to; the fuzzer's own are exact in its Cargo.toml.
cp Cargo.lock fuzz/Cargo.lock
cargo build --release --manifest-path fuzz/Cargo.toml --target "$host" --target-dir target/fuzz

mkdir -p target/fuzz/found

if [ "$seconds" -gt 0 ]; then
    corpus=target/fuzz/corpus limits=(-max_total_time="$seconds")
else
    # They take the slowest target half a minute. A minute is the most, whatever else this machine has to do.
    corpus=$(mktemp -d) limits=(-runs=50000 -seed=1 -max_total_time=60)
    trap 'rm -rf "$corpus"' EXIT
fi
for target in "${targets[@]}"; do
    inputs=("$corpus/$target")
    mkdir -p "${inputs[0]}"
    [ ! -d "fuzz/seeds/$target" ] || inputs+=("fuzz/seeds/$target")
    echo "$target"
    # An input may take 10 s, and a process 2 GiB.
    "target/fuzz/$host/release/$target" "${limits[@]}" -timeout=10 -rss_limit_mb=2048 -verbosity=0 \
        -print_final_stats=1 -artifact_prefix="target/fuzz/found/$target-" "${inputs[@]}" 2>&1 |
        grep -avE '^WARNING: Failed to find function|^stat::(peak|new|slowest)'
done
