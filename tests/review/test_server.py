"""The command: an address on this machine, until Ctrl-C."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest

from more_cli.files import sha256_bytes
from more_cli.store.target import Target
from support.helpers import World, run, wait_for
from support.serving import serving

FORM = "multipart/form-data; boundary=x"


def ended(server: subprocess.Popen[bytes], number: int) -> tuple[int, bytes, bytes]:
    server.send_signal(number)
    out, err = server.communicate(timeout=60)
    return server.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_nothing_is_left(world: World, tmp_path: Path, number: int) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    picture = (world.root / "img" / "black.png").read_bytes()
    with serving(world, TMPDIR=str(scratch)) as (server, address):
        place = urlsplit(address)
        assert (place.hostname, place.path) == ("127.0.0.1", "/")
        browser = http.client.HTTPConnection(place.netloc, timeout=60)
        browser.request("GET", f"/?{place.query}")
        answer = browser.getresponse()
        answer.read()
        cookie = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
        browser.request("GET", "/", headers=cookie)
        listed = browser.getresponse()
        assert (listed.status, b"3 edits" in listed.read()) == (200, True)
        assert listed.headers["server"] is None
        head = b'--x\r\nContent-Disposition: form-data; name="do"\r\n\r\nnothing\r\n'
        head += b'--x\r\nContent-Disposition: form-data; name="upload"; filename="a.png"\r\n\r\n'
        headers = cookie | {"Content-Type": FORM, "Origin": f"http://{place.netloc}"}
        browser.request("POST", "/draft", head + picture + b"\r\n--x--\r\n", headers)
        assert browser.getresponse().status == 422
        assert [path.name for path in scratch.glob("more-review-*/*")] == [sha256_bytes(picture)]
        refused = http.client.HTTPConnection(place.netloc, timeout=60)
        refused.request("GET", "/x\x1b[2J".replace("\x1b", "%1b"))
        assert refused.getresponse().status == 403
        code, out, err = ended(server, number)
    assert (code, out, list(scratch.iterdir())) == (0, b"", [])
    lines = err.decode().splitlines()
    assert lines[0].startswith("open this address in a browser of this machine")
    assert [line for line in lines if line.startswith("refused GET /x")] == lines[1:]
    assert "\x1b" not in err.decode()


def test_it_can_be_reached_from_this_machine_only(world: World) -> None:
    with serving(world) as (_, address):
        port = urlsplit(address).port
        listening = Path("/proc/net/tcp")
        if not listening.exists():
            pytest.skip("only Linux lists the addresses that are listened on here")
        rows = [row.split() for row in (listening.read_text() + Path("/proc/net/tcp6").read_text()).splitlines()]
        bound = [row[1] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "0A"]
        assert bound == [f"0100007F:{port:04X}"]


def test_the_browser_is_opened_if_asked(world: World, tmp_path: Path) -> None:
    script = tmp_path / "browser"
    script.write_text(f"#!/bin/sh\necho \"$1\" > '{tmp_path}/part' && mv '{tmp_path}/part' '{tmp_path}/opened'\n")
    script.chmod(0o755)
    with serving(world, "--open", BROWSER=f"{script} %s") as (_, address):
        wait_for((tmp_path / "opened").exists)
        assert (tmp_path / "opened").read_text().strip() == address


def test_a_port_that_is_taken_is_a_sentence(world: World) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        refused = run("review", world.model, "--port", port)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith(f"error: port {port} cannot be used: ")
    assert "hint: leave --port out" in refused.err


def test_what_is_no_model_is_refused_before_anything_listens(tmp_path: Path) -> None:
    refused = run("review", tmp_path / "nowhere")
    assert (refused.code, "no such directory" in refused.err) == (5, True)
    assert run("review", tmp_path, "--state", tmp_path / "no.more").code == 5


def test_a_missing_extra_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    refused = run("review", world.model)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == 'error: `more review` needs uvicorn\nhint: pip install "more-vlm[review]"\n'


def test_it_starts_without_torch() -> None:
    code = "import sys, more_cli.review.server; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ).returncode == 0


@pytest.mark.slow
def test_ctrl_c_while_an_edit_runs_loses_nothing(world: World) -> None:
    with serving(world) as (server, address):
        place = urlsplit(address)
        browser = http.client.HTTPConnection(place.netloc, timeout=60)
        browser.request("GET", f"/?{place.query}")
        answer = browser.getresponse()
        answer.read()
        headers = {"Cookie": answer.headers["set-cookie"].partition(";")[0], "Origin": f"http://{place.netloc}"}
        headers["Content-Type"] = "application/x-www-form-urlencoded"
        browser.request("POST", "/draft", "do=apply&question=q&target=r&id=late", headers)
        assert browser.getresponse().status == 303
        wait_for((world.folder / "lock.pid").exists)
        assert ended(server, signal.SIGINT)[0] == 0
    assert run("verify", world.model).code == 0
    assert not (world.folder / "lock.pid").exists()


def test_a_job_that_ends_while_the_server_stops_keeps_nothing_from_stopping(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ending:
        """A worker whose job ends after it was seen once."""

        stopped = False
        jobs = iter([SimpleNamespace(task=SimpleNamespace(title="counting"))])

        @property
        def running(self) -> object:
            return next(self.jobs, None)

        def stop(self) -> None:
            self.stopped = True

    uvicorn = pytest.importorskip("uvicorn")
    from more_cli.review.server import serve

    worker, said = Ending(), list[str]()
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: None)
    target = Target(world.model, world.sidecar)
    serve(target, worker, 0, lambda address: None, said.append)  # type: ignore[arg-type]
    assert worker.stopped
    assert said == ["waiting until counting can stop; Ctrl-C again ends at once"]
