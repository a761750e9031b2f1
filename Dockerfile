# `logitsieve serve` and what it needs: no torch, no compiler, no pip. The target gpu has the first two.
#
#   docker build --tag logitsieve .
#   docker build --tag logitsieve:otel --build-arg EXTRAS=otel .      # also traces
#   docker build --tag logitsieve:gpu --target gpu .                  # also --device cuda
#
# docs/deployment.md says how to run it. tests/deploy builds and runs it without a container engine.

# A tag may come to name another image, a digest may not: --build-arg BASE=python:3.11-slim@sha256:...
ARG BASE=python:3.11-slim

FROM ${BASE} AS builder
ARG EXTRAS=""
WORKDIR /src
# Dependencies first: this layer stays while only sources change. Every package is known by its hash,
# what builds the wheel too. Compiled to bytecode here: where the root is read-only, no start could
# keep what it compiles.
COPY deploy/image/*.txt deploy/image/
RUN python3 -m venv --without-pip /opt/logitsieve && python3 -m venv /opt/build \
    && /opt/build/bin/python -m pip install \
        --no-deps --require-hashes --requirement deploy/image/build.txt \
    && for extra in console $(echo "$EXTRAS" | tr , ' '); do \
        python3 -m pip --python /opt/logitsieve/bin/python install \
            --compile --no-deps --require-hashes --requirement "deploy/image/$extra.txt" \
        || exit 1; \
    done
COPY pyproject.toml README.md LICENSE ./
COPY proto proto
COPY core core
COPY index_builder index_builder
COPY server server
COPY client client
RUN /opt/build/bin/python -m pip wheel --no-deps --no-build-isolation --wheel-dir /dist .
# Nothing that is known by no hash comes with it, and nothing is missing.
RUN python3 -m pip --python /opt/logitsieve/bin/python install --compile --no-deps /dist/*.whl \
    && python3 -m pip --python /opt/logitsieve/bin/python check
# For each kind of processor that the file names, so that no first start compiles.
COPY deploy/image/kernels.py deploy/image/kernels.py
RUN /opt/logitsieve/bin/python deploy/image/kernels.py compile /opt/logitsieve/share/logitsieve
COPY deploy/image/probe.py deploy/image/kernels.py /opt/logitsieve/

FROM builder AS gpu-builder
RUN python3 -m pip --python /opt/logitsieve/bin/python install \
        --compile --no-deps --require-hashes --requirement deploy/image/gpu.txt \
    && python3 -m pip --python /opt/logitsieve/bin/python check

FROM ${BASE} AS base
LABEL org.opencontainers.image.title="logitsieve" \
    org.opencontainers.image.description="The output layer of a language or translation model, without computing every logit" \
    org.opencontainers.image.version="0.1.0" \
    org.opencontainers.image.licenses="Apache-2.0"
# A volume that is new takes its owner from the folder under it.
RUN groupadd --gid 10001 logitsieve \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent \
        --shell /usr/sbin/nologin logitsieve \
    && install --directory --owner 10001 --group 10001 /var/cache/logitsieve \
    && install --directory /models
# The cache is the one folder that may be written to, so what wants a temporary file gets it there.
ENV PATH=/opt/logitsieve/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TMPDIR=/var/cache/logitsieve
WORKDIR /
USER 10001:10001
EXPOSE 50051 8080
STOPSIGNAL SIGTERM
# Alive, not ready: a processor that compiles its own kernels at a first start takes a minute.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "/opt/logitsieve/probe.py", "http://127.0.0.1:8080/healthz"]
ENTRYPOINT ["python", "/opt/logitsieve/kernels.py", "run", "logitsieve", "serve"]
# Arguments of `docker run` take the place of all of these.
CMD ["--model-repository", "/models", "--host", "0.0.0.0", "--kernel-cache", "/var/cache/logitsieve"]

FROM base AS gpu
# Triton compiles what launches its kernels. Python's headers are in the image, the driver's library
# comes from the machine.
USER 0:0
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
USER 10001:10001
COPY --from=gpu-builder /opt/logitsieve /opt/logitsieve
ENV TRITON_CACHE_DIR=/var/cache/logitsieve/triton \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

# The last one is what is built where no target is named.
FROM base AS runtime
COPY --from=builder /opt/logitsieve /opt/logitsieve
