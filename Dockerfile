# One image for every role; the command chooses: namesrv, controller, broker, audit, ...
#   docker build -t keelmq .                                     servers only
#   docker build --build-arg EXTRAS='[audit]' -t keelmq-audit .  with Spark, and a Java runtime from PyPI
#   docker build --build-arg EXTRAS='[otlp]' -t keelmq-otlp .    servers that push their metrics by OTLP
FROM python:3.11-slim AS build
# For the compiled path; without a compiler sends take the Python path.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml hatch_build.py requirements-server.lock requirements-audit.lock requirements-otlp.lock requirements-build.lock README.md LICENSE NOTICE ./
COPY keelmq keelmq
COPY model model
COPY runtime runtime
COPY remoting remoting
COPY store store
COPY ha ha
COPY controller controller
COPY namesrv namesrv
COPY client client
COPY broker broker
COPY admin admin
COPY chaos chaos
COPY audit audit
COPY cli cli
# What builds it has hashes, too, and is no part of the image.
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements-build.lock \
    && /opt/build/bin/pip wheel --no-cache-dir --disable-pip-version-check --no-build-isolation --no-deps --wheel-dir /dist .
# Only from here on images differ: what is above is built once for all of them.
ARG EXTRAS=""
# Each extra has a lock of its own; tls is in the servers'. What installs it is no part of the image either.
RUN python -m venv --without-pip /opt/keelmq \
    && pip="/opt/build/bin/pip --python /opt/keelmq/bin/python --no-cache-dir --disable-pip-version-check" \
    && for lock in server $(echo "$EXTRAS" | tr '[],' '   '); do \
         $pip install --require-hashes -r "requirements-$lock.lock" || exit 1; \
       done \
    && $pip install --no-index --no-deps /dist/*.whl

FROM python:3.11-slim
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /data keelmq \
    && install -d -o keelmq -g keelmq /data /report
COPY --from=build /opt/keelmq /opt/keelmq
ENV PATH=/opt/keelmq/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /data
VOLUME /data
# Of a server with adminPort=9000; another command has none of its own: --no-healthcheck. By bash: a Python
# started every 2 s costs twenty times as much, and is the first that does not finish on a machine that is busy.
HEALTHCHECK --interval=5s --timeout=10s --start-period=10s --retries=5 \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/9000 || exit 1; printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' >&3; read -r -d '' -t 5 answer <&3; echo \"$answer\"; [[ $answer == 'HTTP/1.'?' 200 '* ]]"]
ENTRYPOINT ["keelmq"]
CMD ["--help"]
