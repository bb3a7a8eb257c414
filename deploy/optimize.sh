#!/usr/bin/env bash
# Builds the binary of a release: with the profile `dist`, and optimized by what ran how often in a build that counts
# (`-C profile-use`), under the load of deploy/train.py. `make dist`, `make bench` and the Dockerfile call it, with more
# options for cargo where they have some:
#
#     deploy/optimize.sh --target-dir target/dist-build
#
# TARGET names a target that this machine can run; unless it is set, it is the machine's own. Counts that are newer than
# every source are used again.
#
# A count belongs to the name of a function, which both builds have to give alike. So both build the binary alone (`cargo
# bench` would build it with the features of the tests), and both name the target (without it cargo gives the flags to build
# scripts and macros too).
set -euo pipefail
cd "$(dirname "$0")/.."

host=$(rustc -vV | sed -n 's/^host: //p')
target=${TARGET:-$host}
build=(cargo build --bin keylatch --profile dist --locked --target "$target")
counting=$PWD/target/counting
counts=$counting/$target.profdata

is_current() {
    local sources=(Cargo.toml Cargo.lock .cargo assets config crates src deploy/optimize.sh deploy/train.py)
    local changed=(-not -path 'crates/testkit/*' -not -path '*/tests/*' -newer "$counts")
    [ -e "$counts" ] && [ -z "$(find "${sources[@]}" -type f "${changed[@]}" -print -quit)" ]
}

count() {
    local llvm_profdata
    llvm_profdata=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata
    [ -x "$llvm_profdata" ] || { echo "llvm-profdata is wanted: \`rustup component add llvm-tools\`"; exit 1; }
    command -v redis-server > /dev/null || { echo "redis-server is wanted: the Debian package redis-server"; exit 1; }
    rm -rf "$counting/raw"
    RUSTFLAGS="-Cprofile-generate=$counting/raw" "${build[@]}" --target-dir "$counting"
    python3 deploy/train.py "$counting/$target/dist/keylatch"
    # What did not run has no entry: it is optimized as it would be without counts, and not for its size.
    "$llvm_profdata" merge --sparse --output "$counts" "$counting/raw"
}

is_current || count
RUSTFLAGS="-Cprofile-use=$counts" exec "${build[@]}" "$@"
