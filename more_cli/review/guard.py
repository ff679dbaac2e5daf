"""Who may use the page: one browser of this machine, which was given the token, from the page itself.

The server listens on 127.0.0.1, but every site that the user visits can send requests there too. So a request must name
this host (a foreign name that resolves to 127.0.0.1 is refused), carry the cookie that the token was exchanged for,
and, if it changes something, come from this page. Whatever is refused is logged and reaches no handler.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from more_cli.inputs.images import MAX_BYTES
from more_cli.text import shorten

HOSTS = ("127.0.0.1", "localhost")
BODY_BYTES = MAX_BYTES + 2**20
"""Longest body of a request: the largest picture and the fields of a form."""
FIELDS_BYTES = 4 * 2**20
"""Longest body of one without a picture: its fields are in memory together."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; img-src 'self'; script-src 'none'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Sent with every response: nothing is loaded from elsewhere, run, framed, cached, or shown to another site."""


class _Refused(Exception):
    """A request that reaches no handler."""

    def __init__(self, reason: str, status: int = 403) -> None:
        super().__init__(reason)
        self.status = status


class Guard:
    """Wraps the page: checks every request, adds `HEADERS` to every response, and logs what was refused or not there.

    `log` gets one sentence for each; `port` is the one that the server listens on.
    """

    def __init__(self, app: ASGIApp, port: int, log: Callable[[str], None], body_bytes: int = BODY_BYTES) -> None:
        self._app = app
        self._log = log
        self._body_bytes = body_bytes
        self._hosts = {f"{host}:{port}" for host in HOSTS} | (set(HOSTS) if port == 80 else set())
        self._cookie_name = f"more_review_{port}"  # a browser sends cookies to all ports of a host
        self._cookie = secrets.token_urlsafe(32)
        self.token = secrets.token_urlsafe(32)
        """What the first request has to bring, in the address; then it is spent."""
        self._spent = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or hand it to the page."""
        if scope["type"] != "http":
            return  # neither websockets nor a start or an end of the server concern the page
        method, path = scope["method"], shorten(scope["path"], 80)
        limit = self._limit(Headers(scope=scope))
        body = _Counted(receive, limit)

        async def of_page(message: Message) -> None:
            if not body.too_long:  # else what the page says is about the part that it was given
                await sent(message)

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_encoded(HEADERS)]
                if message["status"] in (403, 404, 405, 413):
                    self._log(f"refused {method} {path}: {refusal or message['status']}")
            await send(message)

        refusal = ""
        try:
            answer = self._checked(scope)
        except _Refused as refused:
            refusal = str(refused)
            answer = PlainTextResponse(f"refused: {refused}\n", refused.status)
        if answer is None:
            await self._app(scope, body, of_page)
            if body.too_long:
                refusal = f"the body has more than {limit:,} bytes"
                answer = PlainTextResponse(f"refused: {refusal}\n", 413)
        if answer is not None:
            await answer(scope, receive, sent)

    def _checked(self, scope: Scope) -> Response | None:
        """Return the answer to a request that brings the token, None for one that the page answers."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            raise _Refused(f"the host is `{shorten(', '.join(hosts))}`, not this page's")
        if scope["method"] not in ("GET", "POST"):
            raise _Refused("only GET and POST are answered", 405)
        has_cookie = self._has_cookie(headers)
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token")
        if token and scope["method"] == "GET":
            return self._exchanged(token[0], has_cookie)
        if not has_cookie:
            raise _Refused(
                "no valid cookie: open the address that `more review` printed, in the browser you opened first"
            )
        if scope["method"] == "POST":
            self._check_origin(headers, hosts[0])
            length = headers.get("content-length", "0")
            if not length.isdecimal() or len(length) > 18 or int(length) > self._limit(headers):
                raise _Refused(f"the body has {shorten(length)} bytes, more than {self._limit(headers):,}", 413)
        return None

    def _limit(self, headers: Headers) -> int:
        """Return how long the body of a request may be: only a form with a picture comes in parts."""
        with_picture = headers.get("content-type", "").lower().startswith("multipart/")
        return self._body_bytes if with_picture else min(self._body_bytes, FIELDS_BYTES)

    def _exchanged(self, token: str, has_cookie: bool) -> Response:
        """Exchange the token for the cookie, and lead to an address without it."""
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            raise _Refused("wrong token")
        answer = RedirectResponse("/", 303)
        if self._spent and not has_cookie:
            raise _Refused("the token was used already: stop `more review` and start it again for another browser")
        self._spent = True
        answer.set_cookie(self._cookie_name, self._cookie, path="/", httponly=True, samesite="strict")
        return answer

    def _has_cookie(self, headers: Headers) -> bool:
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self._cookie_name)
        except CookieError:
            morsel = None
        value = morsel.value if morsel else ""
        return hmac.compare_digest(value.encode(), self._cookie.encode())

    def _check_origin(self, headers: Headers, host: str) -> None:
        """Check that a form of this page sent the request: pages of other sites cannot set these headers.

        Where the policy is `no-referrer`, browsers say `null` and leave it to `Sec-Fetch-Site`.
        """
        origin = headers.get("origin", "null")
        if origin != "null" and origin.lower() != f"http://{host.lower()}":
            raise _Refused(f"the origin is `{shorten(origin)}`, not this page")
        if origin == "null" and headers.get("sec-fetch-site") != "same-origin":
            raise _Refused("neither `Origin` nor `Sec-Fetch-Site` says that this page sent it")


class _Counted:
    """Receives the body of a request; one that is too long is cut, as if the browser had gone away."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._left = limit

    @property
    def too_long(self) -> bool:
        """Whether more came than may come; nothing after that is read."""
        return self._left < 0

    async def __call__(self) -> Message:
        if self.too_long:
            return {"type": "http.disconnect"}
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        return {"type": "http.disconnect"} if self.too_long else message


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]
