#!/usr/bin/env bash
# What `make dist` has built, as someone without Rust meets it: on a Debian that debootstrap makes, the static archive, the
# wheel (by pip and by uvx) and the npm package are installed and run `keylatch demo`, and one order is placed twice. It
# says how long each took from the built file to the replayed order, and what the idle service has in memory. Root is needed.
set -euo pipefail
cd "$(dirname "$0")/../.."
dist=$PWD/target/dist root=$PWD/target/debian/users
LARGEST_ARCHIVE=$((12 * 1024 * 1024))

if [ ! -e "$root/complete" ]; then
    rm -rf "$root"
    debootstrap --variant=minbase --include=ca-certificates,curl,python3-venv \
        "${SUITE:-bookworm}" "$root" "${MIRROR:-http://deb.debian.org/debian}" > /dev/null
    # The certificates of this machine, should a proxy before the registries need one of its own.
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    cp /etc/resolv.conf "$root/etc/"
    # debootstrap does not know which of several packages npm needs.
    chroot "$root" sh -euc '
        apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends nodejs npm
        python3 -m venv /tools
        /tools/bin/pip install --quiet uv==0.13.9
    ' > /dev/null
    touch "$root/complete"
fi
rm -rf "$root/dist" && cp -r "$dist" "$root/dist"

for archive in "$dist"/*-musl.tar.gz; do
    size=$(stat --format %s "$archive")
    echo "$(basename "$archive"): $size bytes"
    test "$size" -le "$LARGEST_ARCHIVE" || { echo "more than $LARGEST_ARCHIVE bytes"; exit 1; }
done

cat > "$root/walk.sh" << 'WALK'
set -eu
export PATH=/tools/bin:$PATH HOME=/root NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt
! command -v cargo > /dev/null
now() { date +%s%3N; }
order() {
    curl --silent --include --max-time 10 "$url/v1/orders" --header 'Idempotency-Key: order-17' --data '{"amount":1999,"currency":"EUR"}'
}
begun=$(now)
mkdir -p "/walk/$1" && cd "/walk/$1"
case $1 in
archive)
    tar -xzf /dist/keylatch-*-"$(uname -m)"-unknown-linux-musl.tar.gz --strip-components 1
    set -- ./keylatch
    ;;
pip)
    python3 -m venv .
    bin/pip install --quiet --no-index /dist/keylatch_bin-*"$(uname -m)"*.whl
    set -- bin/keylatch
    ;;
uvx) set -- uvx --quiet --offline --from "$(echo /dist/keylatch_bin-*"$(uname -m)"*.whl)" keylatch ;;
npx)
    npm install --silent --no-fund --no-audit /dist/keylatch-linux-*.tgz /dist/keylatch-0*.tgz
    set -- npx keylatch
    ;;
esac
"$@" demo > out 2> log &
demo=$!
url=
for _ in $(seq 200); do
    url=$(grep --max-count 1 --only-matching 'http://127.0.0.1:[0-9]*' out) && break
    kill -0 $demo 2> /dev/null || { cat out log; exit 1; }
    sleep 0.1
done
order | grep --quiet '^HTTP/1.1 201'
order | grep --quiet --ignore-case '^idempotent-replayed: true'
taken=$(($(now) - begun))
# The service itself, under whatever started it.
resident=$(awk '/^Name:/ { name = $2 } /^VmRSS:/ && name == "keylatch" { print $2 }' /proc/[0-9]*/status)
echo "$taken ms to the replayed order, $resident kB resident: $*"
kill -TERM $demo
# npx itself ends by the signal that it passes on.
wait $demo || [ "$? $1" = "143 npx" ] || { echo "$* did not end well"; cat log; exit 1; }
WALK

for way in archive pip uvx npx; do
    rm -rf "$root/walk"
    unshare --mount --pid --fork --propagation private \
        sh -c 'mount -t proc proc "$0/proc" && exec chroot "$0" bash /walk.sh "$1"' "$root" "$way"
done
