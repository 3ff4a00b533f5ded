# syntax=docker/dockerfile:1
# octavo on a CPU:          docker build -t octavo:0.1.0 .
# with CUDA's libraries:    docker build -t octavo:0.1.0-cuda --target cuda .
#
# Pin the base by digest where builds must be reproducible to the bit. Any Debian with python3 and
# its venv module will do, as deploy/test/image.sh shows.
ARG BASE_IMAGE=python:3.12.11-slim-bookworm

FROM ${BASE_IMAGE} AS build
# A C compiler for model/native, whose libraries are built as the package is.
# Versions come and go on Debian's mirrors: one pinned here could soon not be installed.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY constraints.txt requirements.lock ./
RUN python3 -m venv /opt/octavo

# What octavo needs is a layer of its own, which a change of octavo leaves in the cache.
FROM build AS build-cpu
# Where pip asks, for networks with mirrors or certificates of their own.
ARG PIP_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_CERT
# PyPI's torch for Linux is the one with CUDA; PyTorch's own index has that for CPUs alone, of the same
# version with +cpu behind it, which pip prefers.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/octavo/bin/pip install --constraint constraints.txt pip \
    && /opt/octavo/bin/pip install --require-hashes --no-deps --requirement requirements.lock \
    && /opt/octavo/bin/pip install --extra-index-url "${TORCH_INDEX}" \
        --constraint constraints.txt torch
COPY . .
# Of torch, what only its own tests and C++ programs use goes: 190 MB.
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/octavo/bin/pip install --no-deps --build-constraint constraints.txt . \
    && /opt/octavo/bin/pip check \
    && rm -r /opt/octavo/lib/python3*/site-packages/torch/test \
        /opt/octavo/lib/python3*/site-packages/torch/include \
    && find /opt/octavo/lib/python3*/site-packages/torch/bin -type f ! -name torch_shm_manager -delete

FROM build AS build-cuda
ARG PIP_INDEX_URL
ARG PIP_FIND_LINKS
ARG PIP_CERT
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/octavo/bin/pip install --constraint constraints.txt pip \
    && /opt/octavo/bin/pip install --require-hashes --no-deps --requirement requirements.lock \
    && /opt/octavo/bin/pip install --constraint constraints.txt torch
COPY . .
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/octavo/bin/pip install --no-deps --build-constraint constraints.txt . \
    && /opt/octavo/bin/pip check

FROM ${BASE_IMAGE} AS runtime
# Whose a new volume is, that Docker mounts there.
RUN install -d -o 10001 -g 10001 /models
# A number, as the kubelet can't tell whether a name is root's.
USER 10001:10001
ENV PATH=/opt/octavo/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    OCTAVO_CACHE=/models \
    HF_HOME=/models/huggingface \
    OCTAVO_HOST=0.0.0.0
EXPOSE 8000
WORKDIR /tmp
# For Docker, whose health is that it can be used; Kubernetes asks its own probes.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 \
    CMD ["python3", "-c", "import os, urllib.request as u; u.urlopen(f'http://127.0.0.1:{os.environ.get(\"OCTAVO_PORT\", 8000)}/readyz')"]
ENTRYPOINT ["octavo"]
CMD ["serve"]

FROM runtime AS cuda
# The NVIDIA container runtime mounts the driver; the rest of CUDA is in torch's packages.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-cuda /opt/octavo /opt/octavo

FROM runtime AS cpu
COPY --from=build-cpu /opt/octavo /opt/octavo
