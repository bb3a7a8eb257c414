"""Reads whether the OpenAPI document that is served is valid, calls every operation of it with requests that schemathesis
makes, and reads whether the service answers as the document says: once without identities, and once with an API key.

    run.py KEYLATCH SCHEMATHESIS [EXAMPLES]
"""

import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.request

import openapi_spec_validator

HERE = pathlib.Path(__file__).parent
KEY = "kl_" + "0" * 48
# A stream does not end, and `memory:` gives no copy.
LEFT_OUT = "/(hold|events|backup)$"


def serve(keylatch, directory, settings):
    """Starts the service on a free port of this machine, and gives it and its URL."""
    config = directory / "keylatch.toml"
    secret = directory / "issued.secret"
    secret.write_text("0" * 32)
    own = f'sandbox = "on"\nlisten = "127.0.0.1:0"\nissued_keys.secret_file = "{secret}"\n'
    config.write_text(own + settings)
    arguments = [keylatch, "--store", "memory:", "--config", config]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KEYLATCH_")}
    log = open(directory / "log", "w+b")
    service = subprocess.Popen(arguments, stdout=log, stderr=log, env=environment)
    while True:
        text = (directory / "log").read_text()
        found = re.search(r'"listening","address":"([0-9.:]+)"', text)
        if found:
            return service, "http://" + found[1]
        if service.poll() is not None:
            sys.exit("the service did not start:\n" + text)


def check(schemathesis, url, examples, headers, report):
    arguments = [schemathesis, "--config-file", HERE / "schemathesis.toml", "run", url + "/openapi.json"]
    arguments += ["--url", url, "--exclude-path-regex", LEFT_OUT, "--max-examples", str(examples)]
    arguments += ["--workers", "1", "--no-color", "--report-json-path", report]
    for header in headers:
        arguments += ["--header", header]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(HERE)}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    done = subprocess.run(arguments, env=environment, cwd=report.parent)
    return done.returncode, cases(json.loads(report.read_text()))


def cases(report):
    """How many requests were made."""
    return report["test_cases"]["generated"]


def identities(directory):
    """Settings with one identity that may do everything."""
    sha256 = hashlib.sha256(KEY.encode()).hexdigest()
    (directory / "identities.toml").write_text(
        f'[[identity]]\nname = "all"\nkeys = [{{ sha256 = "{sha256}" }}]\nact_for = ["*"]\n'
        'allow = [{ locks = "", may = ["acquire", "read", "break"] }, '
        '{ keys = "", may = ["use", "read", "resolve", "erase"] }]\n'
    )
    return f'identities = "{directory}/identities.toml"\n'


def main():
    keylatch, schemathesis = map(os.path.abspath, sys.argv[1:3])
    examples = int((sys.argv[3:] or ["100"])[0])
    total, failed = 0, False
    for with_key in (False, True):
        with tempfile.TemporaryDirectory() as name:
            directory = pathlib.Path(name)
            settings = identities(directory) if with_key else ""
            service, url = serve(keylatch, directory, settings)
            headers = [f"Authorization: Bearer {KEY}"] if with_key else []
            try:
                with urllib.request.urlopen(url + "/openapi.json") as document:
                    openapi_spec_validator.validate(json.load(document))
                code, made = check(schemathesis, url, examples, headers, directory / "report.json")
            finally:
                service.terminate()
                service.wait()
        total, failed = total + made, failed or code != 0
    print(f"{total} requests")
    sys.exit(failed)


if __name__ == "__main__":
    main()
