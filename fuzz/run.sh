#!/usr/bin/env bash
# Builds the fuzz targets with stable Rust and gives each so many seconds: fuzz/run.sh SECONDS [TARGET…]
# What an input reaches that no earlier one did stays in target/fuzz/corpus; one that fails is in target/fuzz/found.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=$1
shift
targets=("$@")
[ $# -gt 0 ] || targets=(request fingerprint structured_field cursor snapshot redis_reply)

host=$(rustc -vV | sed -n 's/^host: //p')
# What libFuzzer counts: every edge, and what is compared. The last tells the crates that this is such a build.
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing"
# With the versions that the product is locked to; the fuzzer's own are exact in its Cargo.toml.
cp Cargo.lock fuzz/Cargo.lock
cargo build --release --manifest-path fuzz/Cargo.toml --target "$host" --target-dir target/fuzz

mkdir -p target/fuzz/found target/fuzz/corpus/snapshot
for golden in crates/core/tests/golden/*.hex; do
    python3 -c 'import sys; sys.stdout.buffer.write(bytes.fromhex(sys.stdin.read()))' <"$golden" \
        >"target/fuzz/corpus/snapshot/$(basename "$golden" .hex)"
done
for target in "${targets[@]}"; do
    corpus=(target/fuzz/corpus/"$target")
    mkdir -p "${corpus[0]}"
    [ ! -d "fuzz/seeds/$target" ] || corpus+=("fuzz/seeds/$target")
    echo "$target"
    # An input may take 10 s, and a process 2 GiB.
    "target/fuzz/$host/release/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -verbosity=0 \
        -print_final_stats=1 -artifact_prefix="target/fuzz/found/$target-" "${corpus[@]}" 2>&1 |
        grep -avE '^WARNING: Failed to find function|^stat::(peak|new|slowest)'
done
