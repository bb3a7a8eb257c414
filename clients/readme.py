"""Runs what each client's README shows, and what checks the exports, with what was installed, against a keylatch.

    readme.py KEYLATCH INSTALLED PROXY

INSTALLED has a folder for each language: `python` (a virtual environment), `npm`, `go` (a module) and `rust` (a package).
PROXY is the URL of the Go modules.
"""

import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "deploy"))
from processes import free_port, running  # noqa: E402

CLIENTS = pathlib.Path(__file__).parent.resolve()
KEYLATCH, INSTALLED = (pathlib.Path(argument).absolute() for argument in sys.argv[1:3])
PORT = free_port()
URL = f"http://127.0.0.1:{PORT}"
# Go keeps what it has of modules with the rest of this check.
GO = {"GOPROXY": sys.argv[3], "GOFLAGS": "-mod=mod", "GONOSUMDB": "*", "GOPATH": str(INSTALLED / "gopath")}

# A program around a part of one.
GO_PART = """package main

import (
	"context"
	"log"

	keylatch "github.com/keylatch/keylatch/clients/go"
)

type database struct{}

func (database) ExecContext(context.Context, string, ...interface{}) (int, error) { return 1, nil }

func send(context.Context) error { return nil }

func main() {
	ctx, db, id := context.Background(), database{}, 17
	client, err := keylatch.New()
	if err != nil {
		log.Fatal(err)
	}
	lease, err := client.Lock(ctx, "invoice")
	if err != nil {
		log.Fatal(err)
	}
	defer lease.Release(ctx)
	_, _ = db, id
	{
		%s
	}
	if err != nil {
		log.Fatal(err)
	}
}
"""
RUST_PART = """
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    send_once(&Client::new("http://127.0.0.1:7070")?).await
}
"""


def blocks(readme, language):
    return re.findall(rf"```{language}\n(.*?)```", readme.read_text(), re.DOTALL)


def whole_go(block):
    if block.startswith("package "):
        return block
    # What a part declares is used.
    used = "if err != nil {\n\tlog.Fatal(err)\n}\n_ = answer" if "answer, err :=" in block else ""
    return GO_PART % f"{block}{used}"


def whole_rust(block):
    block = block if "fn main()" in block else block + RUST_PART
    return block.replace("http://127.0.0.1:7070", URL)


def programs():
    """The folder, the file, its text and the command of each program."""
    for text in blocks(CLIENTS / "python/README.md", "python"):
        yield INSTALLED / "python", "program.py", text, ["bin/python", "program.py"]
    for text in blocks(CLIENTS / "typescript/README.md", "js"):
        yield INSTALLED / "npm", "program.mjs", text, ["node", "program.mjs"]
    exports = (CLIENTS / "typescript/exports.mjs").read_text()
    yield INSTALLED / "npm", "exports.mjs", exports, ["node", "exports.mjs"]
    for text in blocks(CLIENTS / "go/README.md", "go"):
        yield INSTALLED / "go", "main.go", whole_go(text), ["go", "run", "."]
    for text in blocks(CLIENTS.parent / "crates/client/README.md", "rust,no_run"):
        # That it compiles is a test of documentation; examples/fencing runs the same with a database.
        if "trait Database" not in text:
            yield INSTALLED / "rust", "src/main.rs", whole_rust(text), ["cargo", "run", "--quiet"]


def prepare():
    """Compiles what the packages are made of, which takes longer than a program may."""
    (INSTALLED / "rust/src/main.rs").write_text("fn main() {}\n")
    subprocess.run(["cargo", "build", "--quiet"], cwd=INSTALLED / "rust", env=environment(), check=True)


def environment():
    return {**os.environ, **GO, "KEYLATCH_URL": URL}


def main():
    prepare()
    count = 0
    for folder, name, text, command in programs():
        (folder / name).write_text(text)
        with running([KEYLATCH, "--store", "memory:", "--listen", f"127.0.0.1:{PORT}"], PORT, INSTALLED / "log"):
            done = subprocess.run(command, cwd=folder, env=environment(), timeout=50, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{folder / name}:\n{text}\n{done.stdout}{done.stderr}")
        count += 1
    print(f"{count} programs of the READMEs run with what is published")


main()
