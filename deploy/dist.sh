#!/usr/bin/env bash
# What a release has, in target/dist: for each target an archive with the stripped binary, its manual and its completions;
# the Debian package; the wheel and the npm packages that carry a static binary; what the binary is made of (CycloneDX); and
# the checksums of all. `make dist` calls it, with cargo-deb and cargo-cyclonedx in PATH, and in PYTHON one with `build`.
#
# TARGETS names the targets. Unless it is set, they are this machine's own, and the static one with musl where rustup has
# it (`rustup target add`) and musl-gcc is there (Debian package musl-tools).
set -euo pipefail
cd "$(dirname "$0")/.."

host=$(rustc -vV | sed -n 's/^host: //p')
musl=${host/-gnu/-musl}
version=$(cargo metadata --locked --no-deps --format-version 1 |
    python3 -c 'import json, sys; print(next(p["version"] for p in json.load(sys.stdin)["packages"] if p["name"] == "keylatch"))')

has_musl() {
    [ "$musl" != "$host" ] && command -v musl-gcc > /dev/null && rustup target list --installed | grep -qx "$musl"
}

if [ -z "${TARGETS:-}" ]; then
    TARGETS=$host
    if has_musl; then
        TARGETS="$TARGETS $musl"
    else
        echo "no static binary: \`rustup target add $musl\` and the Debian package musl-tools are wanted for it"
    fi
fi

rm -rf target/dist target/dist-build/share
share=target/dist-build/share
mkdir -p "$share"

# The profile is called dist and cargo would build it in target/dist, which is the release itself.
export CARGO_TARGET_DIR=target/dist-build

# What the binary prints of itself: it has to be one of this machine.
TARGET=$host deploy/optimize.sh
print() {
    "$CARGO_TARGET_DIR/$host/dist/keylatch" "${@:2}" > "$share/$1" && test -s "$share/$1" ||
        { echo "\`keylatch ${*:2}\` prints nothing: the package needs it"; exit 1; }
}
print keylatch.1 man
print keylatch.bash completions bash
print _keylatch completions zsh
print keylatch.fish completions fish

for target in $TARGETS; do
    TARGET=$target deploy/optimize.sh
    name=keylatch-$version-$target
    mkdir -p "target/dist/$name"
    cp "$CARGO_TARGET_DIR/$target/dist/keylatch" "target/dist/$name/keylatch"
    cp -r LICENSE README.md CHANGELOG.md config/keylatch.toml "$share" deploy/systemd "target/dist/$name/"
    rm "target/dist/$name/systemd/check.sh"
    tar -C target/dist -czf "target/dist/$name.tar.gz" "$name"
    rm -r "target/dist/${name:?}"
    deploy/packages/build.sh "$target" "$CARGO_TARGET_DIR/$target/dist/keylatch" "${PYTHON:-python3}"
done

cargo-deb --no-build --profile dist --locked --target "$host" --output target/dist/
rm -r "$share"
# cargo-cyclonedx writes one beside each Cargo.toml of the workspace.
cargo cyclonedx --quiet --format json --features full --target "$host" --override-filename keylatch.cdx
mv keylatch.cdx.json "target/dist/keylatch-$version.cdx.json"
find crates -name keylatch.cdx.json -delete
(cd target/dist && sha256sum -- * > SHA256SUMS && cat SHA256SUMS)
