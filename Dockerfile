# rlhf-dialog for CPUs:      docker build --tag rlhf-dialog . && docker run --rm --volume "$PWD:/work" rlhf-dialog doctor
# For NVIDIA GPUs, torch's CUDA build:  docker build --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 ...
FROM python:3.11-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1
WORKDIR /opt/rlhf-dialog
COPY . .
RUN python -m pip install --no-cache-dir --constraint constraints.txt --index-url "$TORCH_INDEX" torch
RUN python -m pip install --no-cache-dir --constraint constraints.txt --editable ".[gguf]"
RUN useradd --create-home trainer && mkdir /work && chown trainer /work
USER trainer
WORKDIR /work
ENTRYPOINT ["rlhf-dialog"]
CMD ["--help"]
