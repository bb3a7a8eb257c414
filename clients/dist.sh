#!/usr/bin/env bash
# What is published of the clients, in target/dist/clients: wheel and sdist, npm tarball, crates, Go module. Then each is
# installed from there where nothing else is, and runs its README. `make dist-clients` calls it.
# Usage: dist.sh TOOLS, from the top of the repository: a virtual environment with `build`.
set -euo pipefail
tools=$(realpath "$1") top=$PWD
dist=$top/target/dist/clients fresh=$top/target/dist-clients
# Without line tables of the dependencies, as in Cargo.toml: so most of what the tests are built of serves here too.
export CARGO_TARGET_DIR=$top/target CARGO_PROFILE_DEV_DEBUG=false CARGO_INCREMENTAL=0
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
module=github.com/keylatch/keylatch/clients/go
crates="keylatch-core keylatch-wire keylatch-client keylatch-stores keylatch-axum keylatch"
# Go keeps its modules without the right to write.
chmod -R u+w "$fresh" 2> /dev/null || true
rm -rf "$dist" "$fresh" && mkdir -p "$dist" "$fresh"/{npm,go,rust}

echo "Python: sdist and wheel"
"$tools/bin/python" -m build --no-isolation --outdir "$dist/python" clients/python > /dev/null
python3 -m venv "$fresh/python"
"$fresh/python/bin/pip" install --quiet --disable-pip-version-check "$dist"/python/keylatch-"$version"-*.whl

echo "TypeScript: npm tarball"
(cd clients/typescript && npm ci --silent --no-fund --no-audit && mkdir "$dist/npm" && npm pack --silent --pack-destination "$dist/npm" > /dev/null)
npm install --silent --no-fund --no-audit --prefix "$fresh/npm" "$dist/npm/keylatch-client-$version.tgz"

echo "Go: module, as a proxy serves it"
proxy=$dist/go/$module/@v
mkdir -p "$proxy"
cp clients/go/go.mod "$proxy/v$version.mod"
echo "v$version" > "$proxy/list"
echo "{\"Version\":\"v$version\",\"Time\":\"$(git log -1 --format=%cI)\"}" > "$proxy/v$version.info"
git archive --format=zip --prefix="$module@v$version/" --output="$proxy/v$version.zip" HEAD:clients/go
printf 'module readme\n\ngo 1.19\n\nrequire %s v%s\n' "$module" "$version" > "$fresh/go/go.mod"

echo "Java: jars with sources and javadoc, SBOM"
parts="keylatch-client keylatch-spring-boot-starter keylatch-spring-boot-starter/boot2"
mvn --quiet --batch-mode --file clients/java/pom.xml --projects "${parts// /,}" clean package -DskipTests \
    org.cyclonedx:cyclonedx-maven-plugin:2.9.1:makeBom
for part in $parts; do
    mkdir -p "$dist/java/$part"
    cp "clients/java/$part"/target/*.jar "clients/java/$part/target/bom.json" "$dist/java/$part"
done

# cargo builds each crate from its package and the packages of the others; so this binary is what crates.io would give.
echo "Rust: crates, and the binary from its package"
# cargo takes what it unpacked and built of this version for an earlier run, although the sources have changed since.
rm -rf "${CARGO_HOME:-$HOME/.cargo}"/registry/{src,cache}/-*/keylatch*-"$version"* \
    "$CARGO_TARGET_DIR"/debug/.fingerprint/keylatch-*
# shellcheck disable=SC2086
cargo package --locked --quiet --allow-dirty $(printf -- '-p %s ' $crates)
keylatch=$CARGO_TARGET_DIR/debug/keylatch
test "$("$keylatch" --version)" = "keylatch $version"
mkdir "$dist/crates"
for crate in $crates; do
    cp "$CARGO_TARGET_DIR/package/$crate-$version.crate" "$dist/crates/"
    tar -C "$fresh/rust" -xzf "$dist/crates/$crate-$version.crate"
done
mkdir "$fresh/rust/src"
# The versions that were just built.
cp Cargo.lock "$fresh/rust/"
cat > "$fresh/rust/Cargo.toml" << TOML
[package]
name = "readme"
version = "0.0.0"
edition = "2024"

[dependencies]
keylatch-client = "$version"
tokio = { version = "1", features = ["macros", "rt-multi-thread"] }

[patch.crates-io]
keylatch-client.path = "keylatch-client-$version"
keylatch-core.path = "keylatch-core-$version"
keylatch-wire.path = "keylatch-wire-$version"

[workspace]
TOML

python3 clients/readme.py "$keylatch" "$fresh" "file://$dist/go"
rm -rf "$CARGO_TARGET_DIR/package"
