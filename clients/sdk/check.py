"""Makes a client of the OpenAPI document with each generator that people use, compiles or type-checks it, and makes the same
calls with each against one keylatch: create, a conflict, renew, list, release; begin, complete and begin again.

    check.py KEYLATCH TOOLS        (TOOLS: a virtual environment, which has node_modules as well)
"""

import os
import pathlib
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent.resolve()
sys.path.insert(0, str(HERE.parents[1] / "deploy"))
from processes import free_port, running  # noqa: E402

KEYLATCH, TOOLS = (pathlib.Path(argument).absolute() for argument in sys.argv[1:])
DOCUMENT = HERE.parents[1] / "openapi/openapi.json"
WORK, NODE = TOOLS / "made", TOOLS / "node_modules/.bin"
PYTHON = TOOLS / "bin/python"
JAR = next(TOOLS.glob("lib/python*/site-packages/openapi_generator_cli/openapi-generator.jar"))
# What the generated Java imports: Jackson, which the generator itself has, and Jakarta's annotations, from Debian.
CLASSES = f"{JAR}:/usr/share/java/jakarta-annotation-api.jar"
# A client then reads the answers of a newer service, which have more members.
OPEN = "disallowAdditionalPropertiesIfNotPresent=false"
# Nothing is fetched while it runs, and nothing is told to anybody.
QUIET = {"DO_NOT_TRACK": "1", "GOFLAGS": "-mod=mod", "GOPROXY": "off", "GO111MODULE": "on"}


def run(*command, folder=WORK):
    done = subprocess.run(command, cwd=folder, env={**os.environ, **QUIET}, timeout=300, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def generator(language, folder, *options):
    """openapi-generator, the program in Java."""
    properties = ",".join(["hideGenerationTimestamp=true", *options])
    arguments = ["-g", language, "-i", DOCUMENT, "-o", WORK / folder, f"--additional-properties={properties}"]
    run("java", "-jar", JAR, "generate", *arguments)


def type_script():
    run(NODE / "openapi-typescript", DOCUMENT, "-o", "openapi-typescript/schema.d.ts")
    run(NODE / "openapi-ts", "-i", DOCUMENT, "-o", "hey-api", "--no-log-file")
    generator("typescript-fetch", "typescript-fetch")
    run(NODE / "tsc", "-p", ".")
    for name in ("openapi-typescript", "hey-api", "typescript-fetch"):
        # A top-level await is a module's.
        arguments = ["--bundle", "--platform=node", "--format=esm", "--log-level=error", f"--outfile={name}.mjs"]
        run(NODE / "esbuild", f"{name}.ts", *arguments)
        yield name, ["node", f"{name}.mjs"]


def python():
    package = "keylatch_openapi_python_client"
    run(
        TOOLS / "bin/openapi-python-client", "generate", "--path", DOCUMENT, "--output-path", package,
        "--meta", "none", "--overwrite", "--config", "openapi-python-client.yaml", "--fail-on-warning",
    )  # fmt: skip
    generator("python", "generator-python", "packageName=keylatch_generator_python")
    shutil.copytree(WORK / "generator-python/keylatch_generator_python", WORK / "keylatch_generator_python")
    for name in ("openapi_python_client", "generator_python"):
        run(PYTHON, "-m", "mypy", "--no-error-summary", "--cache-dir", TOOLS / "mypy", f"{name}.py")
        yield name, [PYTHON, f"{name}.py"]


def go():
    generator("go", "go/keylatchapi", "packageName=keylatchapi", "withGoMod=false", OPEN)
    # Of its tests, which want more modules than the client.
    shutil.rmtree(WORK / "go/keylatchapi/test")
    shutil.copy(HERE / "generator.go", WORK / "go/main.go")
    (WORK / "go/go.mod").write_text("module sdk\n\ngo 1.19\n")
    run("go", "vet", "./...", folder=WORK / "go")
    run("go", "build", "-o", WORK / "generator-go", ".", folder=WORK / "go")
    yield "openapi-generator, Go", [WORK / "generator-go"]


def java():
    generator("java", "java", "library=native", "openApiNullable=false", "useJakartaEe=true")
    sources = [*(WORK / "java/src/main").rglob("*.java"), HERE / "Generator.java"]
    run("javac", "-proc:none", "-nowarn", "-d", "classes", "-cp", CLASSES, *sources)
    yield "openapi-generator, Java", ["java", "-cp", f"classes:{CLASSES}", "Generator"]


def main():
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir()
    for script in HERE.iterdir():
        if script.suffix in (".ts", ".py", ".json", ".yaml") and script.name != "check.py":
            shutil.copy(script, WORK)
    made = []
    for language in (type_script, python, go, java):
        begun = time.monotonic()
        made += language()
        print(f"{language.__name__}: generated and checked in {time.monotonic() - begun:.0f} s")
    port = free_port()
    with running([KEYLATCH, "--store", "memory:", "--listen", f"127.0.0.1:{port}"], port, WORK / "log"):
        for number, (name, command) in enumerate(made):
            run(*command, f"http://127.0.0.1:{port}", f"sdk-{number}")
            print(f"{name}: its calls are answered")


main()
