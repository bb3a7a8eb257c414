"""Runs each example against a real keylatch, as it stands, with free ports in place of its own.

    check.py KEYLATCH TOOLS      (TOOLS: a venv with fastapi, uvicorn and PyYAML, and node_modules with express)
"""

import contextlib
import functools
import http.client
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

import yaml

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "deploy"))
from processes import free_port, running  # noqa: E402

KEYLATCH, TOOLS = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])


def serving(arguments, port, folder, **environment):
    """A process that runs in the folder of an example."""
    return running(arguments, port, folder / f"{port}.log", cwd=folder, env={**os.environ, **environment})


@contextlib.contextmanager
def example(name, ports):
    """A copy of an example, with a keylatch of its configuration; gives the folder and the port of keylatch."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / name
        shutil.copytree(HERE / name, copy)
        for path in copy.iterdir():
            text = path.read_text()
            for old, new in ports.items():
                text = text.replace(f":{old}", f":{new}")
            path.write_text(text)
        with serving([KEYLATCH, "--config", "keylatch.toml"], ports[7070], copy):
            yield copy


def ask(port, method, path, body=None, key=None):
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    headers = {"Content-Type": "application/json"} if body else {}
    client.request(method, path, body and json.dumps(body), headers | ({"Idempotency-Key": key} if key else {}))
    answer = client.getresponse()
    return answer.status, answer.headers["Idempotent-Replayed"], json.loads(answer.read())


def runs_once(port, path, body, made):
    """A request that is sent twice is carried out once, and reads the same answer."""
    first = ask(port, "POST", path, body, "key-17")
    second = ask(port, "POST", path, body, "key-17")
    assert first[0] == 201 and first[1] is None, first
    assert second == (first[0], "true", first[2]), second
    assert ask(port, "GET", path)[2] == made, ask(port, "GET", path)


def fastapi():
    ports = {7070: free_port(), 8000: free_port()}
    with example("fastapi", ports) as folder:
        arguments = [TOOLS / "bin/python", "-m", "uvicorn", "app:app", "--port", str(ports[8000])]
        with serving(arguments, ports[8000], folder):
            runs_once(ports[7070], "/orders", {"item": "tea"}, ["tea"])


def express():
    ports = {7070: free_port(), 3000: free_port()}
    with example("express", ports) as folder:
        (folder / "node_modules").symlink_to(TOOLS / "node_modules")
        with serving(["node", "app.mjs"], ports[3000], folder, PORT=str(ports[3000])):
            runs_once(ports[7070], "/payments", {"cents": 1999}, [1999])


def rails():
    ports = {7070: free_port(), 3001: free_port()}
    with example("rails", ports) as folder:
        with serving(["puma", "--bind", f"tcp://127.0.0.1:{ports[3001]}"], ports[3001], folder):
            runs_once(ports[7070], "/bookings", {"seat": "12a"}, ["12a"])


def orders():
    """The axum service, which has the layer itself."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        program = KEYLATCH.parent / "examples/orders"
        with serving([program, f"127.0.0.1:{port}"], port, pathlib.Path(folder)):
            first, second = (place(port) for _ in "12")
    assert first[:2] == (201, None) and second == (201, "true", first[2]), (first, second)


def place(port):
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    client.request("POST", "/orders", "2 coffees", {"Idempotency-Key": "k-1"})
    answer = client.getresponse()
    return answer.status, answer.headers["Idempotent-Replayed"], answer.read()


def one_of_two(command, job, folder, port, code=73, said=b"is held by", **environment):
    """Of two copies of a command at once one runs its job, and the other ends with this code."""
    script = folder / "bin" / job
    script.parent.mkdir(exist_ok=True)
    # It runs until the other copy has ended, which opens this pipe.
    os.mkfifo(folder / f"{job}.end")
    script.write_text(f"#!/bin/sh\necho ran >> {folder}/{job}.runs\nread end < {folder}/{job}.end\n")
    script.chmod(0o755)
    environment = {**os.environ, **environment, "KEYLATCH_URL": f"http://127.0.0.1:{port}"}
    environment["PATH"] = f"{folder}/bin:{os.environ['PATH']}"
    first, second = (subprocess.Popen(command, cwd=script.parent, env=environment, stderr=subprocess.PIPE) for _ in "12")
    ended, status = os.wait()
    assert os.waitstatus_to_exitcode(status) == code, status
    loser, winner = (first, second) if ended == first.pid else (second, first)
    (folder / f"{job}.end").write_text("\n")
    assert winner.wait(20) == 0, winner.stderr.read()
    assert said in loser.stderr.read()
    assert (folder / f"{job}.runs").read_text() == "ran\n"


def jobs():
    """cron, GitHub Actions and the CronJob: the command that stands there."""
    lines = (HERE / "cron/nightly-report").read_text().splitlines()
    schedule = next(line for line in lines if re.match(r"\d", line))
    workflow = yaml.safe_load((HERE / "github-actions/deploy.yaml").read_text())
    step = workflow["jobs"]["deploy"]["steps"][-1]["run"].replace("--wait 10m", "--wait 0s")
    pod = yaml.safe_load((HERE / "kubernetes-cronjob/cronjob.yaml").read_text())
    pod = pod["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    port = free_port()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        (folder / "bin").mkdir()
        (folder / "bin/keylatch").symlink_to(KEYLATCH)

        def local(text):
            return text.replace("/usr/local/bin/", f"{folder}/bin/")

        with serving([KEYLATCH, "--store", "memory:", "--listen", f"127.0.0.1:{port}"], port, folder):
            # As cron reads it.
            command = local(schedule.split(maxsplit=6)[6]).replace("\\%", "%").replace("once -q", "once")
            one_of_two(["sh", "-c", command], "report", folder, port, 0, b" runs ")
            github = {"GITHUB_REPOSITORY": "acme/shop", "GITHUB_RUN_ID": "7"}
            one_of_two(["bash", "-e", "-c", step], "deploy.sh", folder, port, **github)
            for left in folder.glob("report.*"):
                left.unlink()
            one_of_two([local(word) for word in pod["containers"][0]["command"]], "report", folder, port)


def other_origin():
    ports = {7070: free_port(), 8000: free_port()}
    with example("other-origin", ports) as folder:
        page = folder / "index.html"
        # A person who presses the button twice.
        press = '<script type="module">for (const _ of "12") document.querySelector("form").requestSubmit();</script>'
        page.write_text(page.read_text().replace("</html>", f"{press}</html>"))
        handler = functools.partial(QuietHandler, directory=folder)
        server = http.server.ThreadingHTTPServer(("127.0.0.1", ports[8000]), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        shown = subprocess.run(
            [os.environ.get("CHROMIUM", "chromium"), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
            + [f"--user-data-dir={folder}/profile", "--virtual-time-budget=10000", f"http://localhost:{ports[8000]}/"],
            capture_output=True, text=True, timeout=50,
        )
        server.shutdown()
        assert "<output>Order 1</output>" in shown.stdout, shown.stdout + shown.stderr
        assert len(ask(ports[7070], "GET", "/v1/orders")[2]["orders"]) == 1


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


signal.signal(signal.SIGALRM, lambda *_: sys.exit("an example hangs"))
signal.alarm(120)
for run in [orders, fastapi, express, rails, jobs, other_origin]:
    run()
    print(f"{run.__name__}: runs")
