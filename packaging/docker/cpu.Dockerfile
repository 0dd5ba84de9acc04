# Demitasse on the CPU. Built from the repository's root:
#   docker build -f packaging/docker/cpu.Dockerfile -t demitasse .
#   docker run --rm -v "$PWD:/data" demitasse summary deploy.prototxt
#   docker run --rm -v "$PWD:/data:ro" -p 127.0.0.1:8000:8000 demitasse serve model/ --host 0.0.0.0
FROM python:3.13-slim AS build
WORKDIR /source
RUN python -m venv /opt/demitasse
COPY pyproject.toml README.md LICENSE ./
COPY demitasse ./demitasse
RUN /opt/demitasse/bin/python -m pip install --no-cache-dir ".[image,hdf5,serve,onnx]"

FROM python:3.13-slim
COPY --from=build /opt/demitasse /opt/demitasse
RUN useradd --create-home --uid 1000 demitasse
ENV PATH=/opt/demitasse/bin:$PATH
USER 1000:1000
WORKDIR /data
EXPOSE 8000
ENTRYPOINT ["demitasse"]
CMD ["doctor"]
