#!/bin/sh
# Checks and builds the client of one language, or plays with those that are built what they do together: every scenario
# with all of them, fencing, and programs that came from Java.
# Usage: check.sh python|typescript|go|java|together KEYLATCH TOOLS RUST, from the top of the repository: the binary, a
# virtual environment, and the folder with the examples of the Rust client.
set -eu
part=$1 keylatch=$(realpath "$2") tools=$(realpath "$3") examples=$(realpath "$4") built=$(realpath "$3")/built
javascript=$tools/javascript/node_modules/.bin
mkdir -p "$built"

# ruff, mypy, pyright, sdist and wheel, tests.
check_python() {
	rm -rf "$built/python"
	cd clients/python
	"$tools/bin/ruff" check --quiet . && "$tools/bin/ruff" format --quiet --check src ./*.py
	"$tools/bin/mypy" --no-error-summary --cache-dir "$tools/mypy" src ./*.py
	"$javascript/pyright" --pythonpath "$tools/bin/python" >"$built/pyright" || { cat "$built/pyright" && false; }
	"$tools/bin/python" -m build --no-isolation --outdir "$built/python" . >/dev/null
	"$tools/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall "$built"/python/*.whl
	KEYLATCH=$keylatch "$tools/bin/python" -m unittest --quiet test_keylatch test_workers
}

# tsc, tests, publint, attw, npm pack, Jest.
check_typescript() {
	rm -rf "$built/npm" "$built"/*.tgz
	cd clients/typescript
	npm ci --silent --no-fund --no-audit
	npm pack --silent --pack-destination "$built" >/dev/null
	KEYLATCH=$keylatch node --test --test-timeout=60000 --test-reporter=dot client.test.mjs testing.test.mjs
	"$javascript/publint" run --strict .
	"$javascript/attw" --quiet "$built"/keylatch-client-*.tgz
	mkdir "$built/npm" && npm install --silent --no-fund --no-audit --prefix "$built/npm" "$built"/keylatch-client-*.tgz
	cat >"$built/npm/require.test.js" <<'TEST'
const { FakeKeylatch } = require('@keylatch/client/testing');
test('require', async () => expect(await new FakeKeylatch().client.once('k', async () => 3)).toBe(3));
TEST
	"$javascript/jest" --silent --rootDir "$built/npm"
}

# gofmt, vet, staticcheck, test, build.
check_go() {
	cd clients/go
	test -z "$(gofmt -l .)"
	go vet ./...
	GOOS=darwin go vet ./...
	# It needs a newer Go than the client does.
	case $(go env GOVERSION) in
	go1.1* | go1.2[0-5]*) ;;
	*) go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./... ;;
	esac
	go test -race ./...
	go build -o "$built/go-conformance" ./conformance
}

# javac -Xlint, Error Prone, test, javadoc, jars, also for Spring Boot; programs before and after, a flash sale.
check_java() {
	rm -rf "$built/java"
	cd clients/java
	mvn --quiet --batch-mode -P errorprone --projects keylatch-client,keylatch-spring-boot-starter clean compile
	KEYLATCH=$keylatch mvn --quiet --batch-mode clean package
	mkdir "$built/java" && cp -r keylatch-client/target/classes keylatch-client/target/test-classes "$built/java"
	cd ../..
	mvn --quiet --batch-mode --file clients/java/keylatch-client -DskipTests -Dmaven.javadoc.skip install
	KEYLATCH=$keylatch mvn --quiet --batch-mode --file clients/java/coming-from clean test
	mvn --quiet --batch-mode --file examples/spring clean compile dependency:build-classpath -Dmdep.outputFile=target/classpath
	python3 clients/spring.py "$keylatch" examples/spring
}

check_together() {
	npm install --silent --no-fund --no-audit --prefix "$built/npm" pg@8.23.1 node-sqlite3-wasm@0.8.60
	python3 clients/fencing.py "$keylatch" "$tools/bin/python" "$built" "$examples/fencing"
	"$tools/bin/python" clients/conformance/run.py "$keylatch" \
		"python=$tools/bin/python clients/python/conformance.py" \
		"asyncio=$tools/bin/python clients/python/conformance.py --asyncio" \
		"node=node clients/typescript/conformance.mjs" \
		"deno=$javascript/deno run --quiet --allow-all clients/typescript/conformance.mjs" \
		"bun=$javascript/bun clients/typescript/conformance.mjs" \
		"go=$built/go-conformance" \
		"rust=$examples/conformance" \
		"java=java -XX:TieredStopAtLevel=1 -cp $built/java/classes:$built/java/test-classes io.keylatch.client.Conformance" \
		--page "chromium=node clients/typescript/browser.mjs"
}

echo "clients: $part"
"check_$part"
