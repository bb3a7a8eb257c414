# The dependencies are built in a layer of their own, which stays until Cargo.toml or Cargo.lock
# change.
FROM rust:1.95-bookworm AS build
WORKDIR /build
COPY Cargo.toml Cargo.lock ./
COPY .cargo .cargo
COPY crates/axum/Cargo.toml crates/axum/
COPY crates/client/Cargo.toml crates/client/
COPY crates/core/Cargo.toml crates/core/
COPY crates/stores/Cargo.toml crates/stores/
COPY crates/testkit/Cargo.toml crates/testkit/
COPY crates/testkit-macros/Cargo.toml crates/testkit-macros/
COPY crates/wire/Cargo.toml crates/wire/
# Stand-ins: Cargo wants every target that a Cargo.toml names to be there.
RUN for crate in . crates/*; do mkdir -p $crate/src && touch $crate/src/lib.rs; done \
    && mkdir -p benches/throughput \
    && echo 'fn main() {}' | tee src/main.rs benches/throughput/main.rs \
    && cargo build --release --locked

COPY assets assets
COPY config config
COPY crates crates
COPY src src
# Cargo goes by time, and the copies may be older than what was built from the stand-ins.
RUN touch src/lib.rs src/main.rs crates/*/src/lib.rs \
    && cargo build --release --locked \
    && mkdir /data

# What the binary links to, the CA certificates that `rediss://` needs, and nothing else: no shell
# and no package manager that would have to be kept up to date.
FROM gcr.io/distroless/cc-debian12
COPY --from=build /build/target/release/keylatch /usr/local/bin/keylatch
# Where the embedded store keeps its locks: a volume, so that they outlive the container.
COPY --from=build --chown=65532:65532 /data /data
VOLUME /data
# By number, so that Kubernetes can see that it is not root.
USER 65532:65532
# It starts only with identities (KEYLATCH_IDENTITIES), or with KEYLATCH_OPEN=true where something else guards it.
# Set the address by this variable and not by `--listen`: the health check reads it too.
ENV KEYLATCH_LISTEN=0.0.0.0:7070 KEYLATCH_STORE=embedded:/data
EXPOSE 7070
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
    CMD ["/usr/local/bin/keylatch", "healthcheck"]
ENTRYPOINT ["/usr/local/bin/keylatch"]
