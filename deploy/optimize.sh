#!/usr/bin/env bash
# Builds the binary of a release, in the profile `dist`, laid out by what ran how often (`-C profile-use`) in a build that
# counts, under the load of train.py. Options go to cargo. TARGET names another target that runs here; with PROFILE= nothing
# is counted. A count belongs to the name of a function, so both builds have the same binary and name the target.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${TARGET:-$(rustc -vV | sed -n 's/^host: //p')}
counts=$PWD/target/counting/$target.profdata
build=(cargo build --bin keylatch --profile dist --locked --features full --target "$target")
[ -n "${PROFILE-counted}" ] || exec "${build[@]}" "$@"

profdata=$(find "$(rustc --print sysroot)" -name llvm-profdata)
: "${profdata:=llvm-profdata-$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')}"
type "$profdata" redis-server python3 > /dev/null || { echo "docs/install.md says where that is, and what PROFILE= does"; exit 1; }
# Counts that are newer than every source are used again.
if [ -n "$(find Cargo.* .cargo assets config crates src deploy/*.{sh,py} -newer "$counts" -print -quit 2>&1)" ]; then
    rm -rf "$counts.raw"
    RUSTFLAGS=-Cprofile-generate=$counts.raw "${build[@]}" --target-dir target/counting
    python3 deploy/train.py "target/counting/$target/dist/keylatch"
    # What did not run has no entry: it is optimized as it would be without counts, and not for its size.
    "$profdata" merge --sparse --output "$counts" "$counts.raw"
fi
RUSTFLAGS=-Cprofile-use=$counts exec "${build[@]}" "$@"
