#!/usr/bin/env bash
# The units as systemd reads them, without a warning, and how much of the system the service can reach: 0 is nothing,
# 10 is everything. No systemd has to run, and keylatch need not be installed.
set -euo pipefail
cd "$(dirname "$0")"

# systemd wants the programs to be there.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for unit in keylatch.service socket-activation/keylatch.socket; do
    sed "s|/usr/bin/keylatch|$(command -v true)|; s|/bin/kill|$(command -v true)|" "$unit" > "$scratch/$(basename "$unit")"
done

if ! warnings=$(systemd-analyze verify --man=no "$scratch"/keylatch.* 2>&1) || [ -n "$warnings" ]; then
    echo "$warnings"
    exit 1
fi
# In tenths.
systemd-analyze security --offline=true --threshold=20 "$scratch/keylatch.service" | tail -n 1
