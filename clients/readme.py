"""Runs the programs of each client's README, and what checks the exports, with what was built, against a keylatch.

    readme.py KEYLATCH PYTHON BUILT
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent / "conformance"))
from stage import free_port  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "deploy"))
from processes import running  # noqa: E402

CLIENTS = pathlib.Path(__file__).parent.resolve()
KEYLATCH, PYTHON, BUILT = (pathlib.Path(argument).absolute() for argument in sys.argv[1:])


def programs(client, language):
    """The blocks of a README that are whole programs."""
    text = (CLIENTS / client / "README.md").read_text()
    blocks = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    return [block for block in blocks if re.match(r"(import|from|package) ", block)]


def run(command, directory, url, text, name):
    (directory / name).write_text(text)
    done = subprocess.run(
        command, cwd=directory, env={**os.environ, "KEYLATCH_URL": url}, timeout=60, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{directory / name}:\n{text}\n{done.stdout}{done.stderr}")
    return 1


def main():
    port, work = free_port(), BUILT / "readme"
    shutil.rmtree(work, ignore_errors=True)
    (work / "go").mkdir(parents=True)
    (work / "python").mkdir()
    module = "module readme\n\ngo 1.19\n\nrequire github.com/keylatch/keylatch/clients/go v0.0.0\n\n"
    (work / "go/go.mod").write_text(f"{module}replace github.com/keylatch/keylatch/clients/go => {CLIENTS / 'go'}\n")
    arguments = [KEYLATCH, "--store", "memory:", "--listen", f"127.0.0.1:{port}"]
    url, count = f"http://127.0.0.1:{port}", 0
    with running(arguments, port, work / "log"):
        for text in programs("python", "python"):
            count += run([PYTHON, "program.py"], work / "python", url, text, "program.py")
        for text in programs("typescript", "js"):
            count += run(["node", "program.mjs"], BUILT / "npm", url, text, "program.mjs")
        for text in programs("go", "go"):
            count += run(["go", "run", "."], work / "go", url, text, "main.go")
        run(["node", "exports.mjs"], BUILT / "npm", url, (CLIENTS / "typescript/exports.mjs").read_text(), "exports.mjs")
    print(f"{count} programs of the READMEs run")


main()
