# outerloop for CPUs:   docker build -t outerloop .
# for NVIDIA GPUs:      docker build -t outerloop --build-arg TORCH=torch .       and docker run --gpus all
# PyPI's torch for Linux includes CUDA (6 GB). For a small CPU image pass the package index of torch's CPU builds as
# --build-arg TORCH_INDEX_URL=... ; an index of another CUDA version goes there as well.
#
#   docker run --rm -v "$PWD/runs:/work/runs" outerloop train recipe=sparseloco exchange=inprocess model=nano
#   docker run --rm -p 4242:4242 -v "$PWD/runs:/work/runs" outerloop train workers=1 exchange.peers=2 \
#     exchange.host=0.0.0.0 exchange.port=4242 'exchange.announce=[/ip4/<address of this machine>/tcp/4242]'
FROM python:3.11-slim

ARG TORCH=torch==2.13.0
ARG TORCH_INDEX_URL=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# torch first, so that nothing later replaces its build, and a change of the sources does not install it again.
RUN pip install ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} "$TORCH"

WORKDIR /opt/outerloop
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY outerloop outerloop
COPY configs configs
# A CUDA build of torch brings its own version of triton: keep that one.
RUN grep -v '^triton==' constraints.txt > /tmp/constraints.txt \
  && pip install --use-pep517 --constraint /tmp/constraints.txt '.[train,hf,sweep,host,watch,tensorboard]'

# The user 1000 owns /work/runs, where runs write, and the cache of compiled kernels.
RUN useradd --create-home --uid 1000 outerloop && install -d -o outerloop /work/runs
USER outerloop
WORKDIR /work
RUN python -m outerloop.kernels.warm
VOLUME /work/runs
EXPOSE 4242
STOPSIGNAL SIGTERM
ENTRYPOINT ["outerloop"]
CMD ["--help"]
