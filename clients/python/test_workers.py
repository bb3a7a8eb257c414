"""Workers that gunicorn (with `--preload`), Celery (prefork) and `multiprocessing` fork from `workers.py`.

KEYLATCH is the binary of the service.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path
from typing import Any

from celery import Celery  # type: ignore[import-untyped]

import keylatch

#: What a worker finds of its parent's leases, and leaves of them.
CHILD = {"is_child": True, "wrong": 0, "lost": ["forked"] * 2, "released": [False] * 2, "held": [True] * 2}
PARENT = {"is_child": False, "wrong": 0, "lost": [None] * 2, "released": [True] * 2, "held": [False] * 2}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


class Workers(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        url = f"http://127.0.0.1:{free_port()}"
        self.environment = {**os.environ, "KEYLATCH_URL": url}
        self.start(os.environ["KEYLATCH"], "--listen", url[len("http://") :], "--store", "memory:")
        self.client = keylatch.Client(url)
        self.addCleanup(self.client.close)

    def start(self, *command: str) -> None:
        """Starts a program, which ends with the test."""
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(command, env=self.environment, cwd=Path(__file__).parent, stdout=log, stderr=log)
        self.addCleanup(process.wait)
        self.addCleanup(process.send_signal, signal.SIGTERM)

    def check_held(self) -> None:
        """The parent holds its locks yet, also where its workers have gone."""
        self.assertEqual([bool(self.client.show(name)) for name in ("lock", "hold")], [True] * 2)

    def test_gunicorn_with_preload(self) -> None:
        port = free_port()
        # A worker ends after three requests.
        options = ["--preload", "--workers=2", "--max-requests=3", f"--bind=127.0.0.1:{port}"]
        self.start(sys.executable, "-m", "gunicorn", *options, "workers:app")
        for _ in range(12):
            self.assertEqual(self.get(f"http://127.0.0.1:{port}/"), CHILD)
        self.check_held()

    def get(self, url: str) -> Any:
        end = time.monotonic() + 30
        while True:
            try:
                with urllib.request.urlopen(url, timeout=30) as response:
                    return json.load(response)
            except OSError:
                # It has yet to start, or a worker was about to end.
                if time.monotonic() > end:
                    raise AssertionError((self.folder / "log").read_text()) from None
                time.sleep(0.05)

    def test_celery_with_prefork(self) -> None:
        folders = dict.fromkeys(("data_folder_in", "data_folder_out", "control_folder"), str(self.folder))
        settings: dict[str, Any] = {"broker": "filesystem://", "backend": f"file://{self.folder}"}
        settings["broker_transport_options"] = {**folders, "polling_interval": 0.05}
        self.environment["CELERY"] = json.dumps(settings)
        options = ["--pool=prefork", "--concurrency=2", "--without-gossip", "--without-mingle"]
        self.start(sys.executable, "-m", "celery", "--app=workers:celery", "worker", *options)
        with Celery("workers", **settings) as app:
            results = [app.send_task("work") for _ in range(6)]
            self.assertEqual([result.get(timeout=60, interval=0.05) for result in results], [CHILD] * 6)
        self.check_held()

    def test_multiprocessing(self) -> None:
        said = subprocess.check_output(
            [sys.executable, "workers.py"], env=self.environment, cwd=Path(__file__).parent, timeout=60
        )
        self.assertEqual(json.loads(said), [CHILD, CHILD, PARENT])


if __name__ == "__main__":
    unittest.main()
