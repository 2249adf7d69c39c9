# The workbook in a container, CPU ranks alone. book/run-anywhere.md says how to build and run it, and what was tried.
#   docker build --build-arg TORCH_INDEX=ADDRESS -t collectives .     (book/install.md tells which address)
#   docker run --rm --init -p 127.0.0.1:8888:8888 -v collectives:/home/learner/collectives collectives
FROM debian:bookworm-slim

RUN apt-get update \
 && apt-get install -y --no-install-recommends python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && python3 -m venv /opt/venv \
 && useradd --create-home learner \
 && install -d -o learner -g learner /home/learner/collectives
ENV PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1

# What seldom changes comes first: torch, then the other packages, then the workbook, which is installed in its place.
WORKDIR /opt/workbook
COPY constraints.txt ./
ARG TORCH_INDEX
RUN pip install --no-deps "$(grep ^torch== constraints.txt)" ${TORCH_INDEX:+--index-url "$TORCH_INDEX"}
COPY pyproject.toml LICENSE ./
RUN mkdir notebooks && pip install -c constraints.txt -e '.[lab,mpi]'
COPY . .
RUN pip install -c constraints.txt --no-deps -e .

USER learner
WORKDIR /home/learner/collectives
ENV JUPYTER_CONFIG_PATH=/opt/workbook/.jupyter
EXPOSE 8888
# In a container 0.0.0.0 is the container's own network; `docker run -p` says who reaches it. Jupyter asks for its token.
CMD python -m labkit . && exec jupyter lab --no-browser --ip=0.0.0.0 --port=8888 --LabApp.default_url=/lab/tree/index.ipynb
