"""Starts the page: finds a port, warms what an answer needs, serves until Ctrl-C."""

from __future__ import annotations

import errno
import gc
import ipaddress
import os
import socket
import sys
import tempfile
from importlib.util import find_spec

from estimators.errors import InputError, MissingDependency, short

INSTALL = "the page needs Gradio: pip install 'dist-advisor[ui]'"
PORT = 7860
MOST_PORTS = 20  # tried when nobody chose one
WARM = ("llama-8b", "qwen2.5-7b", "llama-70b", "mixtral-8x7b")
WARM_METHODS = ("full", "lora", "qlora")


def serve(host: str = "127.0.0.1", port: int | None = None) -> int:
    """Serve the page; returns 0 after Ctrl-C. ``port`` None: 7860, or the next one that is free; 0: any.

    Raises ``MissingDependency`` without Gradio, ``InputError`` for a host or port that cannot be used.
    """
    if find_spec("gradio") is None:
        raise MissingDependency(INSTALL)
    local = is_loopback(host)
    listening = bound(host, port)
    address = f"http://{'[' + host + ']' if ':' in host else host}:{listening.getsockname()[1]}"
    print(f"dist-advisor ui: starting at {address}", file=sys.stderr, flush=True)
    if not local:
        print(
            f"dist-advisor ui: note: {host} can be reached from other machines, and there is no password; "
            "the page reads no paths of this machine",
            file=sys.stderr,
        )
    with tempfile.TemporaryDirectory(prefix="dist-advisor-ui-") as uploads:
        os.environ.update(GRADIO_ANALYTICS_ENABLED="False", GRADIO_TEMP_DIR=uploads, HF_HUB_DISABLE_TELEMETRY="1")
        _run(listening, local, address)
    return 0


def _run(listening: socket.socket, local: bool, address: str) -> None:
    import uvicorn

    from selector.ui.routes import application

    app = application(local)
    warm()
    gc.freeze()  # what lives as long as the server is not looked through again during an answer
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2))
    print(f"dist-advisor ui: ready at {address} (Ctrl-C stops it)", file=sys.stderr, flush=True)
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        pass


def warm() -> None:
    """Ask what a first visitor would ask, so that nobody waits for imports and catalogues."""
    from selector.ui.answer import answer
    from selector.ui.explain import explain
    from selector.ui.fields import FIELDS
    from selector.ui.files import files
    from selector.ui.link import Values
    from selector.ui.pictures import svg

    def form(**given: str) -> Values:
        return tuple(given.get(field.name, "") for field in FIELDS)

    for model in WARM:
        for method in WARM_METHODS:
            values = form(model=model, gpus="8xA100", method=method)
            for language in ("en", "zh"):
                answer(values, language, False)
        explain(values, "en", False)
        files(values, "en", False)
    answer(form(model=WARM[0], gpus="A10", host_memory="8GB"), "en", False)  # nothing fits: the ways out are searched
    if find_spec("matplotlib") is not None:
        for language in ("en", "zh"):
            svg("instants", values, False, False, language)


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bound(host: str, port: int | None) -> socket.socket:
    """A socket on that port. Raises ``InputError`` where it is taken, not allowed, or no port at all."""
    if port is not None and not 0 <= port <= 65535:
        raise InputError(f"--port {port} is not a port; give one from 1 to 65535, or 0 for any that is free")
    for number in (port,) if port is not None else range(PORT, PORT + MOST_PORTS):
        try:
            return _listening(host, number)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and port is None:
                continue
            raise InputError(_why(host, number, error)) from None
    raise InputError(f"ports {PORT} to {PORT + MOST_PORTS - 1} are all in use; name one with --port")


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(128)
    except OSError:
        made.close()
        raise
    return made


def _why(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"--port {port} is already in use on {host}; give another one, or none for the next that is free"
    if error.errno == errno.EACCES:
        return f"--port {port} may not be used by you; give one above 1023"
    return f"--host {short(host)}: cannot listen there ({error.strerror or error}); give 127.0.0.1, or 0.0.0.0 for all"
