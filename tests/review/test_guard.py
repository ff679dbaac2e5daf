"""What the page refuses: with a status, a line in the log, and the ledger as it was."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from httpx2 import Response
from PIL import Image

from review.conftest import HOST, PORT, Page

REVERT = {"id": "e2", "head": "0" * 64}
SAME = {"Origin": HOST}


def drafted(page: Page, **headers: str) -> Response:
    """Apply a correction, which would change the ledger at once."""
    fields = {"do": "apply", "picture": "", "question": "q ?", "target": "r"}
    return page.tab.post("/draft", data=fields, headers=headers)


def noise(kilobytes: int) -> bytes:
    file = io.BytesIO()
    Image.effect_noise((kilobytes * 4, 256), 100).save(file, "PNG", compress_level=0)
    return file.getvalue()


def chunks(page: Page) -> Response:
    """A body without a length, which goes on for longer than it may."""

    def body() -> Iterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="upload"; filename="a"\r\n\r\n'
        for _ in range(page.body_bytes // 2**16 + 1):
            yield bytes(2**16)

    headers = SAME | {"Content-Type": "multipart/form-data; boundary=x"}
    return page.tab.post("/ask", content=body(), headers=headers)


REFUSED: dict[str, tuple[int, Callable[[Page], Response], str]] = {
    "no cookie": (403, lambda page: page.stranger().get("/"), "no valid cookie"),
    "no cookie on a picture": (403, lambda page: page.stranger().get(f"/image/small/{'0' * 64}"), "no valid cookie"),
    "no cookie on a form": (
        403, lambda page: page.stranger().post("/revert", data=REVERT, headers=SAME), "no valid cookie"
    ),
    "another cookie": (
        403,
        lambda page: page.stranger().get("/", headers={"Cookie": f"more_review_{PORT}=guessed"}),
        "no valid cookie",
    ),
    "an odd cookie": (
        403, lambda page: page.stranger().get("/", headers={"Cookie": "\u00e9=;=,".encode()}), "no valid cookie"
    ),
    "a wrong token": (403, lambda page: page.stranger().get("/?token=guessed"), "wrong token"),
    "a token that was used": (
        403, lambda page: page.stranger().get("/", params={"token": page.guard.token}), "was used already"
    ),
    "another host": (403, lambda page: page.tab.get("/", headers={"Host": f"evil.example:{PORT}"}), "evil.example"),
    "another port": (403, lambda page: page.tab.get("/", headers={"Host": "127.0.0.1:80"}), "the host is"),
    "two hosts": (
        403,
        lambda page: page.tab.get("/", headers=[("Host", f"127.0.0.1:{PORT}"), ("Host", "evil.example")]),
        "the host is",
    ),
    "another origin": (403, lambda page: drafted(page, Origin="http://evil.example"), "evil.example"),
    "another port as origin": (403, lambda page: drafted(page, Origin="http://127.0.0.1:9"), "the origin is"),
    "https as origin": (403, lambda page: drafted(page, Origin=HOST.replace("http", "https")), "the origin is"),
    "no origin": (403, drafted, "neither `Origin` nor `Sec-Fetch-Site`"),
    "an opaque origin of another site": (
        403, lambda page: drafted(page, **{"Origin": "null", "Sec-Fetch-Site": "cross-site"}), "neither"
    ),
    "a page of another port": (403, lambda page: drafted(page, **{"Sec-Fetch-Site": "same-site"}), "neither"),
    "another method": (405, lambda page: page.tab.delete("/", headers=SAME), "only GET and POST"),
    "a reverting link": (405, lambda page: page.get("/revert", **REVERT), "405"),
    "a path out of the store": (404, lambda page: page.get("/image/small/..%2f..%2fledger.jsonl"), "404"),
    "a plain path": (404, lambda page: page.get("/image/small/%2fetc%2fpasswd"), "404"),
    "a name of the store's folder": (404, lambda page: page.get("/image/small/."), "404"),
    "a digest in capitals": (404, lambda page: page.get(f"/image/small/{'A' * 64}"), "404"),
    "a digest and a newline": (404, lambda page: page.get(f"/image/small/{'0' * 64}%0a"), "404"),
    "no such size": (404, lambda page: page.get(f"/image/huge/{'0' * 64}"), "404"),
    "another file": (404, lambda page: page.get("/static/..%2ftemplates%2fbase.html"), "404"),
    "no such file": (404, lambda page: page.get("/static/other.css"), "404"),
    "no such page": (404, lambda page: page.get("/openapi.json"), "404"),
    "no such job": (404, lambda page: page.get("/jobs/7"), "404"),
    "a picture that is a path": (
        404,
        lambda page: page.tab.post("/ask", data={"picture": "../ledger.jsonl", "question": "q ?"}, headers=SAME),
        "404",
    ),
    "too large an upload": (
        413,
        lambda page: page.post("/ask", picture="", question="q ?", upload=("a.png", noise(2_000), "image/png")),
        "more than 1,048,576",
    ),
    "a length that is none": (
        413, lambda page: page.tab.post("/ask", headers=SAME | {"Content-Length": "-1"}), "the body has -1 bytes"
    ),
    "a body without an end": (413, chunks, "the body has more than 1,048,576 bytes"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(page: Page, name: str) -> None:
    status, send, said = REFUSED[name]
    before = page.ledger
    answer = send(page)
    assert answer.status_code == status
    assert page.ledger == before
    assert len(page.logged) == 1
    assert page.logged[0].startswith("refused ")
    assert said in page.logged[0]
    assert "\n" not in page.logged[0]
    assert not page.worker._jobs, "nothing waits for the model either"
    assert not list(page.uploads.iterdir())
    assert "default-src 'none'" in answer.headers["content-security-policy"]


ALLOWED: dict[str, dict[str, str]] = {
    "its origin": {"Origin": HOST},
    "no origin, but the browser says that it is this page": {"Sec-Fetch-Site": "same-origin"},
    "an origin that the policy hides": {"Origin": "null", "Sec-Fetch-Site": "same-origin"},
}


@pytest.mark.parametrize("name", ALLOWED)
def test_a_form_of_the_page_is_not_refused(page: Page, name: str) -> None:
    before = page.ledger
    assert page.result(drafted(page, **ALLOWED[name])).status_code == 200
    assert page.ledger != before
    assert page.logged == []


def test_the_other_name_of_this_host_is_not_refused(page: Page) -> None:
    host = {"Host": f"localhost:{PORT}"}
    assert page.tab.get("/", headers=host).status_code == 200
    assert drafted(page, Origin=f"http://localhost:{PORT}", **host).status_code == 303


def test_the_token_is_exchanged_for_a_cookie(page: Page) -> None:
    answer = page.get("/", token=page.guard.token)
    assert (answer.status_code, answer.headers["location"]) == (303, "/"), "with its cookie the address goes on working"
    name, _, rest = answer.headers["set-cookie"].partition("=")
    value, *flags = (part.strip().lower() for part in rest.split(";"))
    assert (name, sorted(flags)) == (f"more_review_{PORT}", ["httponly", "path=/", "samesite=strict"])
    assert value != page.guard.token.lower()


def test_every_answer_forbids_what_the_page_does_not_need(page: Page) -> None:
    wanted: dict[str, Any] = {
        "referrer-policy": "no-referrer", "x-content-type-options": "nosniff", "cache-control": "no-store"
    }  # fmt: skip
    for path in ("/", "/ask", "/draft", "/edit?id=e1", "/static/style.css", "/nowhere"):
        headers = page.get(path).headers
        assert {name: headers[name] for name in wanted} == wanted, path
        policy = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
        assert policy == {
            "default-src": "'none'", "style-src": "'self'", "img-src": "'self'", "script-src": "'none'",
            "form-action": "'self'", "frame-ancestors": "'none'", "base-uri": "'none'",
        }  # fmt: skip
