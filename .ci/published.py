"""Compares what docs/install.md says is published with the newest release tag, for `make docs`.

Each row of its first table has the version of the newest tag `v*`, or "not yet" while there is none.
"""

import re
import subprocess
import sys
from pathlib import Path

tags = subprocess.run(["git", "tag", "--list", "v*", "--sort=-version:refname"], capture_output=True, text=True, check=True)
expected = next((tag.removeprefix("v") for tag in tags.stdout.split()), "not yet")
table = re.search(r"^\| way \| published \|.*\n\|.*\n((?:\|.*\n)+)", Path("docs/install.md").read_text(), re.M)
rows = [row.split(" | ") for row in table[1].splitlines()]
sys.exit("\n".join(f"docs/install.md: {row[0]} is said to be published: {row[1]}, and it is: {expected}" for row in rows if row[1] != expected) or 0)
