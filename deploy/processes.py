"""Processes that a check starts and ends."""

import contextlib
import socket
import subprocess
import sys
import threading


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def accepts(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@contextlib.contextmanager
def running(arguments, port, log, limit=60, ready=accepts, **options):
    """A process, from when its port is ready until the end of the block, or for `limit` seconds."""
    with open(log, "w") as errors:
        process = subprocess.Popen(arguments, stdout=errors, stderr=errors, **options)
        watchdog = threading.Timer(limit, process.kill)
        watchdog.start()
        try:
            while not ready(port):
                if process.poll() is not None:
                    sys.exit(f"{arguments[0]} ended:\n{log.read_text()}")
            yield
        finally:
            watchdog.cancel()
            process.terminate()
            process.wait(20)
