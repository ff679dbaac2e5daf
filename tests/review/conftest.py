"""A page over a tiny model, as a browser sees it, without a socket."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra `review` is not installed")

from fastapi.testclient import TestClient
from httpx2 import Response

from more_cli.api import open_model
from more_cli.files import as_user_error
from more_cli.inputs.ratings import Ratings
from more_cli.review.app import make_app
from more_cli.review.guard import Guard
from more_cli.review.worker import Worker
from more_cli.store.target import locate
from support.helpers import LEARNING, QUESTION, World, line
from support.sparing import loaded_once  # noqa: F401 (pytest finds it here)

PORT = 8123
HOST = f"http://127.0.0.1:{PORT}"


@dataclass
class Page:
    """A page, and a browser that was given its token."""

    world: World
    uploads: Path
    body_bytes: int = 2**20
    ratings: Ratings | None = None
    settings: Sequence[str] = LEARNING
    logged: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        target, settings = locate(self.world.model, None), self.settings[1::2]
        self.worker = Worker(
            lambda progress: open_model(target.model, settings=settings, progress=progress), as_user_error
        )
        self.guard = Guard(
            make_app(target, self.uploads, self.worker, self.ratings), PORT, self.logged.append, self.body_bytes
        )
        self.tab = self.stranger()
        assert self.tab.get("/", params={"token": self.guard.token}).status_code == 303

    def stranger(self) -> TestClient:
        """A browser without a cookie."""
        return TestClient(self.guard, base_url=HOST, follow_redirects=False)

    def get(self, path: str, **query: object) -> Response:
        return self.tab.get(path, params=query or None)

    def post(self, path: str, **fields: Any) -> Response:
        """Send a form of the page."""
        files = {"upload": fields.pop("upload")} if "upload" in fields else None
        return self.tab.post(path, data=fields, files=files, headers={"Origin": HOST})

    def result(self, answer: Response) -> Response:
        """Follow a job to the page of its result."""
        assert answer.status_code == 303, answer.text
        while answer.status_code == 303 or 'http-equiv="refresh"' in answer.text:
            answer = self.get(answer.headers.get("location", str(answer.request.url)))
        return answer

    @property
    def ledger(self) -> bytes:
        return (self.world.folder / "ledger.jsonl").read_bytes()

    @property
    def head(self) -> str:
        """What the button that reverts sends along."""
        text = self.get("/edit", id="e1").text
        return text.partition('name="head" value="')[2].partition('"')[0]


@pytest.fixture(scope="session")
def edited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three corrections of a tiny model; the last one supersedes the first."""
    world = World(tmp_path_factory.mktemp("edited"), text_layers=1)
    near = [{"question": "what ?"}, {"question": QUESTION, "image": "img/white.png", "answer": "w"}]
    world.write(
        [
            line(0, rephrases=["which colour ?"], image_rephrases=["img/orange.png"], locality=near),
            line(1, question="what & <b>which</b> ?"),
            line(0, id="better", target="b"),
        ]
    )
    stream = (world.root / "edits.jsonl").read_bytes()
    with contextlib.chdir(world.root):
        assert world.edit(*LEARNING, edits="-", stdin=stream).code == 0
    return world.root


@pytest.fixture
def world(edited: Path, tmp_path: Path) -> World:
    """A copy of that, for one test."""
    shutil.copytree(edited, tmp_path, dirs_exist_ok=True)
    return World.at(tmp_path)


@pytest.fixture
def page(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    page = Page(world, tmp_path_factory.mktemp("uploads"))
    yield page
    page.worker.stop()
