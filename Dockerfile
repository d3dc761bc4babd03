# vitattack for GPU nodes: docker build --tag vitattack . && docker run --gpus all --volume "$PWD:/work" vitattack eval tiny-vit
# Apptainer: apptainer build vitattack.sif docker-daemon://vitattack:latest && apptainer run --nv vitattack.sif eval tiny-vit
ARG PYTHON=3.13
FROM python:${PYTHON}-slim AS wheel
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim
# Wheels of torch bring the libraries of CUDA; the driver is that of the node.
ARG EXTRAS=transformers,ray
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir "$(echo /wheels/*.whl)[${EXTRAS}]" && rm -r /wheels \
    && useradd --create-home --uid 1000 vitattack && mkdir /work && chown vitattack /work
USER vitattack
WORKDIR /work
# Weights, data sets and measurements are kept here: mount a folder to keep them between containers.
ENV VITATTACK_HOME=/work/.vitattack HF_HOME=/work/.huggingface
ENTRYPOINT ["vitattack"]
CMD ["--help"]
