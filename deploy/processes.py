"""Processes that a check starts and ends."""

import contextlib
import socket
import subprocess
import sys
import threading


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextlib.contextmanager
def running(arguments, port, log, limit=60):
    """A process, from when its port takes connections until the end of the block, or for as many seconds."""
    with open(log, "w") as errors:
        process = subprocess.Popen(arguments, stdout=errors, stderr=errors)
        watchdog = threading.Timer(limit, process.kill)
        watchdog.start()
        try:
            while True:
                if process.poll() is not None:
                    sys.exit(f"{arguments[0]} ended:\n{log.read_text()}")
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
            yield
        finally:
            watchdog.cancel()
            process.terminate()
            process.wait(20)
