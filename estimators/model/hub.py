"""A Hugging Face id on this machine: the local cache, then the network when there is one. Never code, only config.json.

The cache is read with ``os`` alone: https://huggingface.co/docs/huggingface_hub/guides/manage-cache has its layout
(``models--ORG--NAME/refs/main`` names the snapshot).
"""

from __future__ import annotations

import os
import re

from estimators.errors import InputError, MissingDependency, short

ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
TIMEOUT_S = 5.0
_TRUE = frozenset({"1", "on", "yes", "true"})


def is_id(text: str) -> bool:
    """``org/name``, or one of the old ids without an organisation."""
    return bool(ID.fullmatch(text)) and ".." not in text and "--" not in text


def cache_folder() -> str:
    """Where huggingface_hub keeps its downloads: the same variables in the same order."""
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache"), "huggingface"
    )
    folder = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or os.path.join(home, "hub")
    return os.path.expanduser(folder)


def cached_config(model_id: str) -> str | None:
    """The newest cached ``config.json`` of an id, ``main`` first."""
    folder = os.path.join(cache_folder(), "models--" + model_id.replace("/", "--"))
    snapshots = os.path.join(folder, "snapshots")
    try:
        with open(os.path.join(folder, "refs", "main"), encoding="ascii") as stream:
            commits = [stream.read(80).strip()]
    except (OSError, ValueError):
        commits = []
    try:
        others = [entry for entry in os.scandir(snapshots) if entry.is_dir()]
    except OSError:
        return None
    commits += [e.name for e in sorted(others, key=lambda e: e.stat().st_mtime, reverse=True)]
    paths = (os.path.join(snapshots, commit, "config.json") for commit in commits if commit)
    return next((path for path in paths if os.path.isfile(path)), None)


def is_offline(offline: bool | None) -> bool:
    """The caller's word, else the variables that the Hugging Face libraries obey."""
    if offline is not None:
        return offline
    return any(os.environ.get(name, "").lower() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def download_config(model_id: str) -> str:
    """Fetch ``config.json`` of an id into the cache.

    Raises ``MissingDependency`` when huggingface_hub or the network is absent, ``InputError`` when the hub refuses.
    """
    try:
        from huggingface_hub import constants, hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        raise MissingDependency(
            f"{model_id} is not in the local Hugging Face cache, and huggingface_hub is not installed to fetch it; "
            "pip install huggingface_hub, or give the path of its config.json"
        ) from None
    if not _reachable(constants.ENDPOINT):
        raise MissingDependency(
            f"{model_id} is not in the local Hugging Face cache ({cache_folder()}), and {constants.ENDPOINT} cannot be "
            "reached; give the path of its config.json"
        )
    try:
        return str(hf_hub_download(model_id, "config.json", etag_timeout=TIMEOUT_S))
    except HfHubHTTPError as refused:
        status = getattr(refused.response, "status_code", None)
        why = "it is gated: accept its terms and log in" if status in (401, 403) else f"it answered {status}"
        raise InputError(f"{constants.ENDPOINT} does not give config.json of {short(model_id)}; {why}") from None
    except Exception as wrong:  # whatever the HTTP library of the day raises when the line drops
        raise MissingDependency(f"config.json of {model_id} could not be fetched: {short(str(wrong), 200)}") from None


def _reachable(endpoint: str) -> bool:
    """A connection within the timeout; a proxy is left to the library."""
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True
    import socket

    host, _, port = endpoint.partition("://")[2].partition("/")[0].partition(":")
    try:
        socket.create_connection((host, int(port or 443)), TIMEOUT_S).close()
    except (OSError, ValueError):
        return False
    return True
