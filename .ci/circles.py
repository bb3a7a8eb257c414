"""Finds import circles between the modules of a crate: files that use each other, directly or by way of others.

A module and its parent are no circle: a parent has its children, and a child may use what its parent defines. So is
what only tests use, and a re-export (`pub use`), which is followed to the file that defines the name.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

USE = re.compile(r"^\s*(pub(?:\([a-z: ]+\))? )?use ([^;]+);", re.M)
PATH = re.compile(r"\b(?:crate|super)(?:::\w+)+")


def leaves(tree, prefix=()):
    """The paths of a `use`: `a::{b, c::d}` is a::b and a::c::d."""
    tree = tree.strip()
    head, brace, rest = tree.partition("{")
    if not brace:
        return [prefix + tuple(tree.split(" as ")[0].strip().split("::"))]
    parts, depth, part = [], 0, ""
    for char in rest[: rest.rindex("}")] + ",":
        depth += (char == "{") - (char == "}")
        if char == "," and depth == 0:
            parts, part = parts + [part], ""
        else:
            part += char
    here = prefix + tuple(head.strip().removesuffix("::").split("::"))
    return [leaf for part in parts if part.strip() for leaf in leaves(part, here if head.strip() else prefix)]


def modules(root):
    """Each module of a crate, as a path, with its text without comments and tests."""
    found = {}
    for file in sorted(root.rglob("*.rs")):
        parts = file.relative_to(root).with_suffix("").parts
        parts = parts[:-1] if parts[-1] in ("mod", "lib") else parts
        text = re.sub(r"//.*", "", file.read_text().split("#[cfg(test)]\nmod ")[0])
        if parts != ("main",):
            found[parts] = text
    return found


def absolute(path, module):
    """A path from the root of the crate; nothing for another crate's."""
    if path[0] == "crate":
        return path[1:]
    base = module
    while path and path[0] in ("super", "self"):
        base, path = (base[:-1] if path[0] == "super" else base), path[1:]
    return base + path


def edges(found):
    """Which module uses which."""
    imports = {module: [] for module in found}
    exports = {}
    for module, text in found.items():
        for public, tree in USE.findall(text):
            for leaf in leaves(tree):
                if leaf[0] not in ("crate", "super", "self") and module + leaf[:1] not in found:
                    continue
                target = absolute(leaf, module)
                if public and module + target[-1:] not in found:
                    exports[module + target[-1:]] = target
                imports[module].append((bool(public), target))
        for path in PATH.findall(USE.sub("", text)):
            imports[module].append((False, absolute(tuple(path.split("::")), module)))
    graph = defaultdict(set)
    for module, targets in imports.items():
        for public, target in targets:
            for _ in range(8):
                # The longest prefix that a re-export names, until a file defines it.
                longer = [target[:n] for n in range(len(target), 0, -1) if target[:n] in exports]
                if not longer or exports[longer[0]] == longer[0]:
                    break
                target = exports[longer[0]] + target[len(longer[0]) :]
            owner = next((target[:n] for n in range(len(target), -1, -1) if target[:n] in found), ())
            if owner and owner != module and owner != module[: len(owner)] and module != owner[: len(module)]:
                graph[module].add(owner)
    return graph


def circles(graph):
    """The groups of modules that reach each other."""

    def reached(start):
        seen, left = set(), [start]
        while left:
            new = graph[left.pop()] - seen
            seen |= new
            left += new
        return seen

    reach = {module: reached(module) for module in list(graph)}
    groups = {frozenset(other for other in reach[m] if m in reach.get(other, ())) for m in reach if m in reach[m]}
    return sorted(sorted("::".join(module) for module in group) for group in groups)


bad = False
for root in [Path("src"), *sorted(Path("crates").glob("*/src"))]:
    graph = edges(modules(root))
    for group in circles(graph):
        bad = True
        print(f"{root}: these use each other: {', '.join(group)}")
        for one in group:
            uses = [o for o in ("::".join(t) for t in graph[tuple(one.split("::"))]) if o in group]
            print(f"    {one} uses {', '.join(sorted(uses))}")
sys.exit(bad)
