#!/usr/bin/env bash
# A Debian package: it has all that it should have, it is installed, what it installed starts with the configuration that it
# installed and gives a lock, in so many seconds, and it is purged. Root is needed, or sudo; a machine that has the package
# already is left as it is.
set -euo pipefail

sudo=$(test "$(id -u)" = 0 || echo sudo)
if dpkg-query --show keylatch > /dev/null 2>&1; then
    echo "the package keylatch is installed on this machine: remove it first"
    exit 1
fi
root=$(mktemp -d)
keylatch=
finish() {
    test -z "$keylatch" || kill "$keylatch" 2> /dev/null || true
    $sudo dpkg --purge keylatch > /dev/null 2>&1 || true
    rm -rf "$root"
}
trap finish EXIT
dpkg-deb --extract "$1" "$root"

for path in usr/bin/keylatch etc/keylatch/keylatch.toml usr/lib/systemd/system/keylatch.service \
    usr/share/man/man1/keylatch.1.gz usr/share/bash-completion/completions/keylatch \
    usr/share/zsh/vendor-completions/_keylatch usr/share/fish/vendor_completions.d/keylatch.fish \
    usr/share/doc/keylatch/copyright usr/share/doc/keylatch/examples/keylatch.socket; do
    test -s "$root/$path" || { echo "the package has no $path"; exit 1; }
done
dpkg-deb --info "$1" conffiles | grep -qx /etc/keylatch/keylatch.toml

# With its own store and socket, beside the service that systemd starts where it runs.
now() { date +%s%3N; }
begun=$(now)
$sudo dpkg --install "$1" > "$root/log" 2>&1 || { cat "$root/log"; exit 1; }
installed=$(now)
/usr/bin/keylatch --config /etc/keylatch/keylatch.toml --store "embedded:$root/store" --listen "unix:$root/socket" \
    2> "$root/log" &
keylatch=$!
# As long as nothing listens there, curl tries again each tenth of a second.
for _ in $(seq 100); do
    lock=$(curl --silent --fail-with-body --max-time 10 --unix-socket "$root/socket" http://localhost/v1/locks/deploy \
        --data '{}') && break
    sleep 0.1
done
echo "$lock" | grep -q '"fencing_token":[0-9]' || { cat "$root/log"; exit 1; }
echo "installed in $((installed - begun)) ms, started and a lock in $(($(now) - installed)) ms"

kill "$keylatch" && wait "$keylatch" || true
keylatch=
$sudo dpkg --purge keylatch > /dev/null
for path in /usr/bin/keylatch /etc/keylatch/keylatch.toml /usr/lib/systemd/system/keylatch.service; do
    test ! -e "$path" || { echo "the purge left $path"; exit 1; }
done
