"""Fails if a dependency asks for a newer Rust than the argument; reads `cargo metadata`."""

import json
import sys


def version(text):
    return [int(part) for part in text.split(".")]


msrv = version(sys.argv[1])
packages = json.load(sys.stdin)["packages"]
newer = [
    f"{package['name']} {package['version']} asks for Rust {package['rust_version']}"
    for package in packages
    if package["rust_version"] and version(package["rust_version"])[: len(msrv)] > msrv
]
print("\n".join(newer) or f"no dependency out of {len(packages)} asks for more than Rust {sys.argv[1]}")
sys.exit(bool(newer))
