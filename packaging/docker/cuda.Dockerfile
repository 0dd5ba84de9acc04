# Demitasse on NVIDIA GPUs, CUDA 13. Built from the repository's root:
#   docker build -f packaging/docker/cuda.Dockerfile -t demitasse:cuda .
#   docker run --rm --gpus all -v "$PWD:/data" demitasse:cuda train --solver solver.prototxt
# The driver is the host's; CUDA's libraries and cuDNN come from PyPI, so no image of NVIDIA's is needed.
FROM python:3.13-slim AS build
WORKDIR /source
RUN python -m venv /opt/demitasse
COPY pyproject.toml README.md LICENSE ./
COPY demitasse ./demitasse
RUN /opt/demitasse/bin/python -m pip install --no-cache-dir ".[image,hdf5,serve,onnx,cudnn13]"

FROM python:3.13-slim
COPY --from=build /opt/demitasse /opt/demitasse
RUN useradd --create-home --uid 1000 demitasse
ENV PATH=/opt/demitasse/bin:$PATH \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    DEMITASSE_DEVICE=cuda:0
USER 1000:1000
WORKDIR /data
EXPOSE 8000
ENTRYPOINT ["demitasse"]
CMD ["doctor"]
