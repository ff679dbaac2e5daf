"""A stand-in of the hub on this machine: enough of its HTTP interface for the real client to download and upload."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import huggingface_hub.constants as constants
import pytest


@dataclass
class Hub:
    """What the stand-in has, was asked and was sent."""

    repos: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    """Files by name, of each commit of each repository; the last commit is `main`."""
    gated: set[str] = field(default_factory=set)
    read_only: set[str] = field(default_factory=set)
    public: set[str] = field(default_factory=set)
    created: list[dict[str, Any]] = field(default_factory=list)
    branches: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """`METHOD PATH` of every request."""
    url: str = ""

    def add(self, repo: str, folder: Path, commit: str) -> None:
        """Put the files of a folder into a repository as its newest commit."""
        files = {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        self.repos.setdefault(repo, {})[commit] = files


class _Refusal(Exception):
    def __init__(self, status: int, code: str = "") -> None:
        super().__init__(code)
        self.status, self.code = status, code


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Keep quiet."""

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        try:
            headers, data = self._answer(path, body)
            status = 200
        except _Refusal as refusal:
            status, data = refusal.status, b"{}"
            headers = {"X-Error-Code": refusal.code} if refusal.code else {}
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(data))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_HEAD = do_POST = _handle  # noqa: N815

    def _answer(self, path: str, body: bytes) -> tuple[dict[str, str], bytes]:
        if self.command == "POST":
            return {}, json.dumps(self._written(path, body)).encode()
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            new = any(f"{made['organization']}/{made['name']}" == found[1] for made in self.hub.created)
            known = found[1] in self.hub.repos or not new
            sha = self._files(found[1], found[2] or "main")[0] if known else None
            private = found[1] not in self.hub.public
            return {}, json.dumps({"id": found[1], "sha": sha, "siblings": [], "private": private}).encode()
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", path):
            _, files = self._files(found[1], found[2])
            rows = [{"type": "file", "path": n, "size": len(d), "oid": _sha1(d)} for n, d in files.items()]
            return {}, json.dumps(rows).encode()
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            commit, files = self._files(found[1], found[2])
            if found[1] in self.hub.gated:
                raise _Refusal(403, "GatedRepo")
            data = files[found[3]]
            return {"X-Repo-Commit": commit, "ETag": f'"{_sha1(data)}"'}, data
        raise _Refusal(404)

    def _files(self, repo: str, revision: str) -> tuple[str, dict[str, bytes]]:
        if repo not in self.hub.repos:
            raise _Refusal(401, "RepoNotFound")
        commits = self.hub.repos[repo]
        commit = list(commits)[-1] if revision == "main" else revision
        if commit not in commits:
            raise _Refusal(404, "RevisionNotFound")
        return commit, commits[commit]

    def _written(self, path: str, body: bytes) -> Any:
        if path == "/api/repos/create":
            asked = json.loads(body)
            self.hub.created.append(asked)
            return {"url": f"{self.hub.url}/{asked['organization']}/{asked['name']}"}
        if path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}
        repo, action, branch = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(\w+)/(.+)", path).groups()
        if repo in self.hub.read_only:
            raise _Refusal(403)
        if action == "branch":
            self.hub.branches.append(branch)
            return {}
        if action == "preupload":
            return {"files": [_regular(file["path"]) for file in json.loads(body)["files"]]}
        assert action == "commit"
        rows = [json.loads(line)["value"] for line in body.splitlines() if json.loads(line)["key"] == "file"]
        commit = _sha1(body)
        self.hub.repos.setdefault(repo, {})[commit] = {row["path"]: base64.b64decode(row["content"]) for row in rows}
        return {"success": True, "commitOid": commit, "commitUrl": f"{self.hub.url}/{repo}/commit/{commit}"}


def _regular(path: str) -> dict[str, Any]:
    return {"path": path, "uploadMode": "regular", "shouldIgnore": False}


def _sha1(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@contextmanager
def hub_here(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Run a stand-in, and let the client of this process use it, with an empty cache and a token."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
