#!/usr/bin/env bash
# A Debian package from the inside: it has all that it should have, and what it has starts with the configuration that
# it has and gives a lock. The package is unpacked and not installed, so that the machine stays as it is.
set -euo pipefail

root=$(mktemp -d)
keylatch=
trap 'test -z "$keylatch" || kill "$keylatch"; rm -rf "$root"' EXIT
dpkg-deb --extract "$1" "$root"

for path in usr/bin/keylatch etc/keylatch/keylatch.toml usr/lib/systemd/system/keylatch.service \
    usr/share/man/man1/keylatch.1.gz usr/share/bash-completion/completions/keylatch \
    usr/share/zsh/vendor-completions/_keylatch usr/share/fish/vendor_completions.d/keylatch.fish \
    usr/share/doc/keylatch/copyright usr/share/doc/keylatch/examples/keylatch.socket; do
    test -s "$root/$path" || { echo "the package has no $path"; exit 1; }
done
dpkg-deb --info "$1" conffiles | grep -qx /etc/keylatch/keylatch.toml

"$root/usr/bin/keylatch" --config "$root/etc/keylatch/keylatch.toml" --store "embedded:$root/store" \
    --listen "unix:$root/socket" 2> "$root/log" &
keylatch=$!
# As long as nothing listens there, curl tries again each second.
curl --silent --fail-with-body --retry 10 --retry-delay 1 --retry-all-errors --retry-max-time 10 --max-time 10 \
    --unix-socket "$root/socket" http://localhost/v1/locks/deploy --data '{}' | grep -o '"fencing_token":[0-9]*' ||
    { cat "$root/log"; exit 1; }
