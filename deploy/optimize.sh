#!/usr/bin/env bash
# Runs cargo as the binary of a release is built: with the profile `dist`, and optimized by what ran how often in a build
# that counts (`-C profile-use`), under the load of deploy/train.py. `make dist`, `make bench` and the Dockerfile call it:
#
#     deploy/optimize.sh build --bin keylatch
#
# TARGET names a target that this machine can run; unless it is set, it is the machine's own. Counts that are newer than
# every source are used again. Both builds name the target: without `--target` cargo gives the flags to build scripts and
# macros too, and with it the functions have other names.
set -euo pipefail
cd "$(dirname "$0")/.."

host=$(rustc -vV | sed -n 's/^host: //p')
target=${TARGET:-$host}
dist=(--profile dist --locked --target "$target")
counting=$PWD/target/counting
counts=$counting/$target.profdata

is_current() {
    local sources=(Cargo.toml Cargo.lock .cargo assets config crates src deploy/optimize.sh deploy/train.py)
    [ -e "$counts" ] && [ -z "$(find "${sources[@]}" -type f -newer "$counts" -print -quit)" ]
}

count() {
    local llvm_profdata
    llvm_profdata=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata
    [ -x "$llvm_profdata" ] || { echo "llvm-profdata is wanted: \`rustup component add llvm-tools\`"; exit 1; }
    rm -rf "$counting/raw"
    RUSTFLAGS="-Cprofile-generate=$counting/raw" cargo build "${dist[@]}" --bin keylatch --target-dir "$counting"
    python3 deploy/train.py "$counting/$target/dist/keylatch"
    # What did not run has no entry: it is optimized as it would be without counts, and not for its size.
    "$llvm_profdata" merge --sparse --output "$counts" "$counting/raw"
}

is_current || count
RUSTFLAGS="-Cprofile-use=$counts" exec cargo "$1" "${dist[@]}" "${@:2}"
