"""Compares what docs/install.md says is published with the newest release tag, for `make docs`.

Each row of its first table has the version of the newest tag `v*`, or "not yet" while there is none. So long the README
says that nothing is published.
"""

import re
import subprocess
import sys
from pathlib import Path

tags = subprocess.run(["git", "tag", "--list", "v*", "--sort=-version:refname"], capture_output=True, text=True, check=True)
expected = next((tag.removeprefix("v") for tag in tags.stdout.split()), "not yet")
table = re.search(r"^\| way \| published \|.*\n\|.*\n((?:\|.*\n)+)", Path("docs/install.md").read_text(), re.M)
rows = [row.split(" | ") for row in table[1].splitlines()]
wrong = [f"docs/install.md: {row[0]} is said to be published: {row[1]}, and it is: {expected}" for row in rows if row[1] != expected]
if ("Nothing is published yet" in Path("README.md").read_text()) != (expected == "not yet"):
    wrong.append(f"README.md says otherwise than that is published: {expected}")
sys.exit("\n".join(wrong) or 0)
