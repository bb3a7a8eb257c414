"""Reads the README and the pages of docs/ and internals/ as a newcomer would, for `make docs`: words, hollow pages and dead ends.

A page fails that says "reads" for gets, "repeat" for retry, "answer" for response, or one of the turns that one has to
read twice; that is hollow on GitHub, because mdBook alone fills it in; or that links to nothing.
`.ci/words-allowed.txt` lists the places where a word is right, a line each: the page, a tab, and a text of that line
(`*`: the whole page). A line that no page needs fails as well.

`NAME.zh-CN.md` is NAME.md in Chinese. It fails unless it has the code, the heading levels and the figures of NAME.md.
The page of a client fails on code that the client's README, whose code is run, does not have.
"""

import difflib
import re
import sys
from pathlib import Path

ALLOWED = Path(".ci/words-allowed.txt")
TOP = [Path(f"{name}.md") for name in ("README", "ARCHITECTURE", "CONTRIBUTING", "SECURITY")]
PEOPLE = r"(?:clients?|requests?|callers?|waiters?|users?|customers?|holders?|retries|browsers?|who|others?)"
CLIENTS = {
    "go": "clients/go",
    "java": "clients/java/keylatch-client",
    "python": "clients/python",
    "rust": "crates/client",
    "typescript": "clients/typescript",
}
PATTERNS = {
    "say gets": r"\breads? (?:an?|the|its|that)? ?(?:answer|response|problem|error|refusal|[1-5]\d\d\b|`)"
    rf"|\b{PEOPLE} reads\b",
    "say retry": r"\brepeat\w*",
    "say response, or respond": r"\banswer(?:s|ed|ing)?\b",
    "say what it is": r"\b(?:be it|be that|as many as (?:may|that)|as may\b|is no keylatch|in the line\b)",
    "say who it is": r"\b(?:who (?:may|can|has|is|reads|runs|sizes) not\b|for who\b|whoever\b|whose they are)",
    "say instead": r"\bin place of (?:asking|repeating|polling)\b",
    "name the actor": r"\b(?:is|are) (?:told|asked|given)\b(?! (?:by|up)\b)",
    "say queue, waiter": r"\bstands? in (?:the )?line\b|\bjoins the lines?\b|\btakes its turn\b",
    "say except, or only": r"\bbut for\b",
    "say free, or available": r"\bto be had\b",
    "say previous": r"\b(?:those|that|the \w+) of before\b",
    "say continues, or again": r"\bgoes on\b|\banew\b",
}
CODE = re.compile(r"^(```+)[^\n]*\n.*?^\1", re.M | re.S)
# What is the same in every language: blocks of code, the levels of headings, rows of a name and its figures.
SHARED = re.compile(CODE.pattern + r"|^#+ |^\| `\w+` (?:\| \d+ )+\|$", re.M | re.S)
INLINE = re.compile(r"(`+)[^`\n]*\1|\]\([^)\n]*\)|<[^>\n]*>")


def blank(match):
    """Nothing to read, with the line breaks of what was there."""
    return "\n" * match[0].count("\n") or "`"


def prose(text):
    """A page without its code and without the targets of its links."""
    return INLINE.sub(blank, CODE.sub(blank, text))


def findings(text):
    """What a page says that it should not: where, and what to say."""
    words = prose(text)
    for advice, pattern in PATTERNS.items():
        for found in re.finditer(pattern.replace(" ", r"\s"), words, re.I):
            line = words[: found.start()].count("\n")
            yield line, found[0], advice
    for found in re.finditer(r"\{\{#include", text):
        yield text[: found.start()].count("\n"), found[0], "have the content here, or link to it: GitHub shows neither"
    if not re.search(r"\]\((?!#)[^)]", text):
        yield 0, "no link", "say where to go from here"


def differences(page):
    """What a translation no longer shares with its original, as a diff."""
    pages = page.with_name(page.name.replace(".zh-CN", "")), page
    shared = ("\n".join(found[0] for found in SHARED.finditer(path.read_text())).splitlines() for path in pages)
    return difflib.unified_diff(*shared, *map(str, pages), n=1, lineterm="")


def strange_code(language, readme):
    """The blocks of code on a client's page that its README, whose blocks are run, does not have."""
    page, readme = Path(f"docs/clients/{language}.md"), (Path(readme) / "README.md").read_text()
    for block in CODE.finditer(page.read_text()):
        if block[0].partition("\n")[2] not in readme:
            yield f"{page}: not in the README of the client: {block[0]}"


def main():
    allowed = [line.split("\t") for line in ALLOWED.read_text().splitlines() if line and not line.startswith("#")]
    used, wrong = set(), []
    for page in [*TOP, *sorted(Path("docs").glob("**/*.md")), *sorted(Path("internals").glob("*.md"))]:
        text = page.read_text()
        lines = text.splitlines() or [""]
        for number, found, advice in findings(text):
            mine = [(i, place) for i, (path, place) in enumerate(allowed) if path == str(page)]
            here = [i for i, place in mine if place == "*" or place in lines[number]]
            used.update(here)
            if not here:
                wrong.append(f"{page}:{number + 1}: {found!r}: {advice}: {lines[number].strip()[:100]}")
    wrong += [f"{ALLOWED}: no page needs: {': '.join(line)}" for i, line in enumerate(allowed) if i not in used]
    for page in [*Path().glob("*.zh-CN.md"), *Path("docs").glob("**/*.zh-CN.md")]:
        wrong += differences(page)
    wrong += [line for client in CLIENTS.items() for line in strange_code(*client)]
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


sys.exit(main())
