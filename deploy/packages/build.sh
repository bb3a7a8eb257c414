#!/usr/bin/env bash
# The packages of PyPI and npm that carry a binary, in target/dist. dist.sh calls it.
# Usage: build.sh TARGET BINARY PYTHON, from the top of the repository: the target of the binary, and a Python with `build`.
set -euo pipefail
target=$1 binary=$(realpath "$2") python=$3

# A static binary needs no C library, so its wheel is for every Linux.
case $target in
x86_64-unknown-linux-musl) platform=manylinux_2_17_x86_64.musllinux_1_1_x86_64 os=linux cpu=x64 ;;
aarch64-unknown-linux-musl) platform=manylinux_2_17_aarch64.musllinux_1_1_aarch64 os=linux cpu=arm64 ;;
x86_64-apple-darwin) platform=macosx_10_12_x86_64 os=darwin cpu=x64 ;;
aarch64-apple-darwin) platform=macosx_11_0_arm64 os=darwin cpu=arm64 ;;
*) echo "no package for $target: a static binary serves its platform" && exit ;;
esac

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
stage=$PWD/target/dist-build/packages
dist=$PWD/target/dist
rm -rf "$stage" && mkdir -p "$stage"/{wheel,npm,launcher} "$dist"

cp deploy/packages/{pyproject.toml,hatch_build.py,README.md} LICENSE "$stage/wheel/"
install "$binary" "$stage/wheel/keylatch"
PLATFORM=$platform "$python" -m build --no-isolation --wheel --outdir "$dist" "$stage/wheel" > /dev/null

install "$binary" "$stage/npm/keylatch"
cp LICENSE "$stage/npm/"
cat > "$stage/npm/package.json" << JSON
{
  "name": "@keylatch/$os-$cpu",
  "version": "$version",
  "description": "The binary of keylatch for $os on $cpu: install keylatch, which takes it from here",
  "license": "MIT OR Apache-2.0",
  "repository": { "type": "git", "url": "git+https://github.com/keylatch/keylatch.git" },
  "publishConfig": { "access": "public" },
  "os": ["$os"],
  "cpu": ["$cpu"],
  "files": ["keylatch"]
}
JSON

cp deploy/packages/npm/* deploy/packages/README.md LICENSE "$stage/launcher/"
for package in npm launcher; do
    (cd "$stage/$package" && npm pack --silent --pack-destination "$dist" > /dev/null)
done
