"""Several clients at once, and a client beside `more edit`: the real server, real processes, one ledger."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from more_cli.review.guard import BODY_BYTES
from support.helpers import World, process, run
from support.serving import serving

FORM = "application/x-www-form-urlencoded"


class Client:
    """A tab of the browser that has the cookie."""

    def __init__(self, place: str, cookie: str) -> None:
        self.place = place
        self.headers = {"Cookie": cookie, "Origin": f"http://{place}", "Content-Type": FORM}

    def send(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, str, str]:
        """Return status, where it leads to, and the text."""
        connection = http.client.HTTPConnection(self.place, timeout=120)
        connection.request(method, path, body, self.headers | headers, encode_chunked=isinstance(body, Iterator))  # type: ignore[arg-type]
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, answer.headers.get("location", ""), text

    def apply(self, **fields: str) -> str:
        """Press the button until nobody else is writing; return the page of the result."""
        while True:
            status, path, text = self.send("POST", "/draft", urlencode({"do": "apply", **fields}))
            assert status == 303, text
            while status == 303 or 'http-equiv="refresh"' in text:
                status, after, text = self.send("GET", path)
                path = after or path
            if "is in use by" not in text:
                return text
            time.sleep(0.05)


def client_of(address: str) -> Client:
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.netloc, timeout=60)
    connection.request("GET", f"/?{place.query}")
    answer = connection.getresponse()
    answer.read()
    return Client(place.netloc, answer.headers["set-cookie"].partition(";")[0])


def at_once(*actions: Callable[[], object]) -> None:
    failed: list[BaseException] = []

    def run_one(action: Callable[[], object]) -> None:
        try:
            action()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run_one, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not failed, failed


@pytest.mark.slow
def test_two_clients_and_an_edit_lose_and_double_nothing(world: World, tmp_path: Path) -> None:
    before = len(world.entries())
    own = {name: [f"{name}{number}" for number in range(3)] for name in ("a", "b", "edit")}
    with serving(world) as (_, address):
        client = client_of(address)

        def pressing(name: str) -> None:
            client.apply(question="the same question of both ?", target="x", id="shared")
            for id in own[name]:
                said = client.apply(question=f"what is {id} ?", target="y", id=id)
                assert "applied: " in said, said

        def editing() -> None:
            for id in own["edit"]:
                line = json.dumps({"id": id, "question": f"what is {id} ?", "target": "z"})
                with open(tmp_path / f"{id}.jsonl", "w") as file:
                    file.write(f"{line}\n")
                while (result := run_in_process(world, tmp_path / f"{id}.jsonl"))[0] == 5:
                    assert "is in use by" in result[1], result[1]
                assert result[0] in (0, 3), result[1]

        at_once(lambda: pressing("a"), lambda: pressing("b"), editing)
    written = Counter(entry["id"] for entry in world.entries()[before:])
    assert written == dict.fromkeys(["shared", *own["a"], *own["b"], *own["edit"]], 1)
    verified = run("verify", world.model)
    assert verified.code == 0, verified.err


def run_in_process(world: World, edits: Path) -> tuple[int, str]:
    with process("edit", world.model, edits) as child:
        _, err = child.communicate(timeout=120)
        return child.returncode, err.decode()


PICTURE = b'--x\r\nContent-Disposition: form-data; name="upload"; filename="a.png"\r\n\r\n'
BODIES = {
    "a picture": ("multipart/form-data; boundary=x", PICTURE, bytes(1 << 20)),
    "long fields": (FORM, b"", (b"id=" + b"x" * (1 << 17) + b"&") * 8),
    "a field": (FORM, b"id=", b"x" * (1 << 20)),
    "many fields": (FORM, b"", b"id=x&" * (1 << 18)),
}


@pytest.mark.parametrize(
    ("path", "name"),
    [*(("/ask", name) for name in BODIES), ("/draft", "a field"), ("/probe", "a field"), ("/revert", "a field")],
)
def test_a_body_without_end_is_refused_and_not_held(world: World, path: str, name: str) -> None:
    kind, start, part = BODIES[name]

    def body() -> Iterator[bytes]:
        yield start
        for _ in range(3 * BODY_BYTES // len(part)):
            yield part

    with serving(world) as (server, address):
        client = client_of(address)
        idle = peak_of(server.pid)
        status, _, text = client.send("POST", path, body(), **{"Content-Type": kind})
        assert status == 413
        assert "the body has more than " in text or "larger than one may be" in text
        assert peak_of(server.pid) - idle < BODY_BYTES / 1024, "kB"
        assert client.send("GET", "/")[0] == 200


def peak_of(pid: int) -> int:
    """The most memory that a process has had, kB."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        pytest.skip("only Linux says how much memory a process has had")
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))
