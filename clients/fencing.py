"""Runs examples/fencing with what was built of each client, against a keylatch, SQLite and a PostgreSQL of its own.

    fencing.py KEYLATCH PYTHON BUILT RUST      (RUST: the example of the Rust client)
"""

import contextlib
import os
import pathlib
import shutil
import sqlite3
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "deploy"))
from processes import free_port, running  # noqa: E402

CLIENTS = pathlib.Path(__file__).parent.resolve()
EXAMPLE = CLIENTS.parent / "examples/fencing"
KEYLATCH, PYTHON, BUILT, RUST = (pathlib.Path(argument).absolute() for argument in sys.argv[1:])
# What Debian has of the drivers, which no proxy of Go modules is needed for.
DRIVERS = pathlib.Path("/usr/share/gocode/src")
SAID = ["paid", "late holder refused"]


@contextlib.contextmanager
def postgres():
    """A PostgreSQL; gives the function that carries out SQL, and the URL."""
    programs = max(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    # It refuses to run as root.
    other = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"] if os.getuid() == 0 else []
    with tempfile.TemporaryDirectory() as folder:
        if other:
            shutil.chown(folder, "postgres", "postgres")
        data, port = pathlib.Path(folder) / "data", free_port()
        initdb = [programs / "initdb", "--auth=trust", "--username=postgres", "--no-sync", "--pgdata", data]
        subprocess.run([*other, *initdb], check=True, capture_output=True, cwd=folder)
        server = [programs / "postgres", "-D", data, "-p", str(port), "-k", folder, "-h", "127.0.0.1"]
        url = f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable"

        def accepts_queries(_):
            # It takes connections before it takes queries.
            return subprocess.run([programs / "pg_isready", "--quiet", "--dbname", url]).returncode == 0

        with running([*other, *server], port, BUILT / "postgres.log", ready=accepts_queries):
            yield lambda sql: subprocess.run([programs / "psql", "-qX", url, "-c", sql], check=True), url


def programs():
    """The folder and the command of each language."""
    shutil.copy(EXAMPLE / "fencing.mjs", BUILT / "npm")
    go = BUILT / "fencing"
    shutil.rmtree(go, ignore_errors=True)
    go.mkdir()
    shutil.copy(EXAMPLE / "main.go", go)
    modules = {"github.com/keylatch/keylatch/clients/go": CLIENTS / "go"}
    modules |= {name: DRIVERS / name for name in ("github.com/lib/pq", "github.com/mattn/go-sqlite3")}
    lines = [f"require {name} v0.0.0\nreplace {name} => {folder}\n" for name, folder in modules.items()]
    (go / "go.mod").write_text("module fencing\n\ngo 1.19\n\n" + "".join(lines))
    yield EXAMPLE, [PYTHON, "fencing.py"]
    yield BUILT / "npm", ["node", "fencing.mjs"]
    yield go, ["go", "run", "-tags", "libsqlite3", "."]
    yield CLIENTS, [RUST]


def main():
    table, port = (EXAMPLE / "invoice.sql").read_text(), free_port()
    service = [KEYLATCH, "--store", "memory:", "--listen", f"127.0.0.1:{port}"]
    environment = {**os.environ, "KEYLATCH_URL": f"http://127.0.0.1:{port}", "GOFLAGS": "-mod=mod"}
    with running(service, port, BUILT / "fencing.log"), postgres() as (execute, url):
        for number, (folder, command) in enumerate(programs()):
            file = BUILT / f"shop-{number}.db"
            file.unlink(missing_ok=True)
            with sqlite3.connect(file) as database:
                database.executescript(table)
            execute(f"SET client_min_messages = warning; DROP TABLE IF EXISTS invoice; {table}")
            done = subprocess.run(
                [*command, file, url], cwd=folder, env=environment, timeout=100, capture_output=True, text=True
            )
            if done.returncode or done.stdout.split("\n") != [*SAID, *SAID, ""]:
                sys.exit(f"{command}:\n{done.stdout}{done.stderr}")
    print("The fencing token in SQLite and PostgreSQL: 4 programs refuse a late holder")


main()
