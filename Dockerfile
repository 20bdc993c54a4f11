# graft serve on a CPU, from this tree. Models, measured costs and compiled kernels stay in /data.
#   docker build -t graft .
#   docker run -p 127.0.0.1:8000:8000 -v graft:/data graft smollm2-135m
FROM python:3.11-slim

ENV GRAFT_HOME=/data/graft HF_HOME=/data/huggingface NUMBA_CACHE_DIR=/data/numba PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY constraints.txt ./
RUN pip install --extra-index-url https://download.pytorch.org/whl/cpu "$(grep '^torch==' constraints.txt)+cpu"
COPY pyproject.toml README.md LICENSE ./
COPY graft graft
RUN pip install -c constraints.txt '.[server,formats]'

RUN useradd --create-home --uid 1000 graft && install -d -o graft /data
USER 1000
WORKDIR /home/graft
VOLUME /data
EXPOSE 8000
HEALTHCHECK --start-period=5m CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["graft", "serve", "--host", "0.0.0.0"]
CMD ["smollm2-135m"]
