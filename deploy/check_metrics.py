"""A Prometheus that scrapes a keylatch: it takes every query of the alerts and of the board, and knows every metric in them.

    check_metrics.py KEYLATCH      (prometheus and promtool in PATH)
"""

import contextlib
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

from processes import free_port, running

HERE = pathlib.Path(__file__).parent
# Long enough for the slowest machine.
LIMIT = 60


def ask(port, path, **query):
    url = f"http://127.0.0.1:{port}{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)["data"]


def send(port, method, path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), method=method)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=10) as answer:
        answer.read()


def tour(keylatch):
    """What makes every metric of the queries exist."""
    send(keylatch, "POST", "/v1/locks/a", {"wait_ms": 1})
    send(keylatch, "POST", "/v1/locks/b/hold", {"max_hold_ms": 100})
    send(keylatch, "POST", "/v1/idempotency/k", {})
    with contextlib.suppress(urllib.error.HTTPError):
        send(keylatch, "POST", "/v1/locks/a", {})


def queries():
    board = json.loads((HERE / "grafana/keylatch.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$job", "keylatch")
            for variable in ("$__rate_interval", "$__range"):
                expression = expression.replace(variable, "5m")
            yield f"board: {panel['title']}", expression
    rules = (HERE / "prometheus/alerts.yaml").read_text()
    found = re.findall(r"- alert: (\w+)\n\s+expr: (?:>\n((?:\s{10,}.*\n)+)|(.*)\n)", rules)
    assert len(found) == rules.count("- alert:"), "an alert was not read"
    for name, folded, plain in found:
        yield f"alert: {name}", folded or plain


def metrics_in(expression):
    return set(re.findall(r"keylatch_\w+", re.sub(r'"[^"]*"', '""', expression)))


def main():
    alerts, tests = HERE / "prometheus/alerts.yaml", HERE / "prometheus/alerts.test.yaml"
    subprocess.run(["promtool", "check", "rules", alerts], check=True)
    subprocess.run(["promtool", "test", "rules", tests], check=True)
    scrape = ["promtool", "check", "config", "--syntax-only", HERE / "prometheus/prometheus.yml"]
    subprocess.run(scrape, check=True)
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        keylatch, prometheus = free_port(), free_port()
        configuration = scratch / "prometheus.yml"
        configuration.write_text(
            f"global: {{scrape_interval: 1s}}\nrule_files: [{alerts}]\nscrape_configs:\n"
            f"- job_name: keylatch\n  static_configs: [{{targets: ['127.0.0.1:{keylatch}']}}]\n"
        )
        service = [sys.argv[1], "--store", "memory:", "--listen", f"127.0.0.1:{keylatch}"]
        server = ["prometheus", f"--config.file={configuration}", f"--storage.tsdb.path={scratch}/data"]
        server += [f"--web.listen-address=127.0.0.1:{prometheus}"]
        with running(service, keylatch, scratch / "keylatch.log"):
            tour(keylatch)
            with running(server, prometheus, scratch / "prometheus.log"):
                check(prometheus)


def check(prometheus):
    wanted = dict(queries())
    missing = set().union(*map(metrics_in, wanted.values()))
    end = time.monotonic() + LIMIT
    while missing:
        # Prometheus says 503 until it has read its own data.
        with contextlib.suppress(urllib.error.HTTPError):
            missing -= set(ask(prometheus, "/api/v1/label/__name__/values"))
        if missing and time.monotonic() > end:
            sys.exit(f"keylatch has no such metrics: {sorted(missing)}")
        time.sleep(0.2)
    for name, expression in wanted.items():
        ask(prometheus, "/api/v1/query", query=expression)
        print(f"ok  {name}")


if __name__ == "__main__":
    main()
