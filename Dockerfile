# syntax=docker/dockerfile:1

# The base images by their tags. A release pins both by the digest that the tag has then (release.yaml).
# Each platform is built on its own, natively or emulated: `docker buildx build --platform linux/amd64,linux/arm64 .`
ARG BUILD_IMAGE=rust:1.95.0-bookworm
ARG BASE_IMAGE=gcr.io/distroless/cc-debian12:nonroot

FROM ${BUILD_IMAGE} AS build
ARG TARGETARCH
# Empty (`--build-arg PROFILE=`), it leaves out the build that counts (deploy/optimize.sh): half of the time, for a binary that
# is as much optimized as a whole, and is not laid out by what runs how often.
ARG PROFILE=counted
WORKDIR /build
# What the build that counts needs. None of it gets into the image: any version does.
# hadolint ignore=DL3008
RUN if [ -n "$PROFILE" ]; then \
        rustup component add llvm-tools \
        && apt-get update -q \
        && apt-get install -qy --no-install-recommends python3 redis-server \
        && rm -rf /var/lib/apt/lists/*; \
    fi
COPY Cargo.toml Cargo.lock ./
COPY .cargo .cargo
COPY assets assets
COPY benches benches
COPY config config
COPY crates crates
COPY deploy/optimize.sh deploy/processes.py deploy/train.py deploy/
COPY src src
# The caches stay with the builder: a change of the sources compiles no dependency again. Nothing of a cache gets into
# the image but by `cp`.
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,id=keylatch-target-${TARGETARCH},target=/build/target,sharing=locked \
    deploy/optimize.sh \
    && cp target/*-linux-gnu/dist/keylatch /keylatch \
    && mkdir /data

# What the binary links to, the CA certificates that `rediss://` needs, and nothing else: no shell
# and no package manager that would have to be kept up to date. It has no versions, so a release names it by its digest.
FROM ${BASE_IMAGE}
ARG BASE_IMAGE
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="keylatch" \
      org.opencontainers.image.description="Locks and idempotency keys over HTTP: leases, fencing tokens, honest answers" \
      org.opencontainers.image.source="https://github.com/keylatch/keylatch" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}"
COPY --from=build /keylatch /usr/local/bin/keylatch
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
