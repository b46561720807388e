# SPDX-License-Identifier: Apache-2.0
# The stock Gaudi PyTorch image in, the distribution image out. `make image` calls it with every argument set.
#
# The base image's torch and Habana packages are never touched: the distribution lives in a virtual environment that
# sees them, and a constraints file in force for every later `pip install` keeps them, and the two wheels, in place.

# Pin it by digest: make image BASE_IMAGE=…@sha256:…
ARG BASE_IMAGE=vault.habana.ai/gaudi-docker/1.24.1/ubuntu24.04/habanalabs/pytorch-installer-2.11.0:latest
# context: take dist/ as `make wheels` left it. build: run `make wheels` inside the base image.
ARG WHEELS=context

FROM ${BASE_IMAGE} AS base

FROM base AS wheels
ARG WHEELS
COPY . /src
WORKDIR /src
RUN if [ "${WHEELS}" = build ]; then \
        rm -rf dist && VLLM_GAUDI_FRONTIER_BUILD_TORCH=system make wheels PYTHON=python3; \
    elif [ ! -f dist/wheels.json ]; then \
        echo "no dist/ in the build context: run 'make wheels' first, or build with --build-arg WHEELS=build" >&2; exit 1; \
    fi

FROM base AS image
ARG VERSION
ARG LOCK_HASH
ARG REVISION
ARG BASE_IMAGE
# Distributions of the base image that stay as they are, and modules that must import once all is installed.
ARG KEEP="torch habana-torch-plugin"
ARG IMPORTS="vllm vllm_gaudi"
# For an index of your own or an offline folder of wheels; not kept in the image.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
COPY requirements/image.txt scripts/image_check.py /opt/frontier/
COPY --from=wheels /src/dist/ /opt/frontier/wheels/
RUN python3 /opt/frontier/image_check.py constraints --record /opt/frontier/wheels/distribution.json \
        --requirements /opt/frontier/image.txt --keep "${KEEP}" > /opt/frontier/constraints.txt && \
    python3 -m venv --system-site-packages --without-pip /opt/frontier/venv && \
    python3 -m pip --python /opt/frontier/venv/bin/python install --no-cache-dir --no-deps --ignore-installed \
        --requirement /opt/frontier/image.txt && \
    python3 -m pip --python /opt/frontier/venv/bin/python install --no-cache-dir --no-deps --no-index \
        /opt/frontier/wheels/*.whl && \
    rm /opt/frontier/wheels/*.whl

ENV PATH=/opt/frontier/venv/bin:${PATH} \
    PIP_CONSTRAINT=/opt/frontier/constraints.txt \
    HABANA_VISIBLE_DEVICES=all \
    OMPI_MCA_btl_vader_single_copy_mechanism=none \
    HABANA_LOGS=/tmp/habana_logs \
    VLLM_NO_USAGE_STATS=1 \
    PORT=8000

# The build fails here unless what is installed is what was built, down to each file of the two wheels.
RUN python /opt/frontier/image_check.py verify --record /opt/frontier/wheels/distribution.json \
        --constraints /opt/frontier/constraints.txt --import "${IMPORTS}" && \
    python -m vllm_gaudi.distribution > /dev/null && \
    useradd --create-home --uid 10001 vllm

LABEL org.opencontainers.image.title="vllm-gaudi-frontier" \
      org.opencontainers.image.description="vLLM for Intel Gaudi with Beam-1.0 and Muse Spark Open. Built with Muse Spark Open." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}" \
      frontier.lock-hash="${LOCK_HASH}"

# The device nodes of some Habana drivers open for root only: `docker run --user root` is the way out there.
USER 10001
WORKDIR /home/vllm
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=30m --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ[\"PORT\"]}/health', timeout=4)"]
ENTRYPOINT ["vllm", "serve"]
CMD ["--help"]
