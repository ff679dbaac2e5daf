"""A real browser for tests: headless Chromium, driven through chromedriver's HTTP interface (W3C WebDriver)."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
MISSING = "" if CHROMIUM and DRIVER else "no Chromium with chromedriver on PATH"
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # W3C WebDriver, section "Elements"
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)


class Browser:
    """One window; links, buttons and fields are named by CSS selectors."""

    def __init__(self, server: str, session: str) -> None:
        self._session = f"{server}/session/{session}"

    def open(self, address: str) -> None:
        """Load a page to its end: under load chromedriver can answer when only its beginning is there."""
        self._post("url", url=address)
        self.wait(lambda: self.script("return document.readyState === 'complete'"))

    @property
    def address(self) -> str:
        return str(self._get("url"))

    def text(self, selector: str = "main") -> str:
        return str(self._get(f"element/{self._find(selector)}/text"))

    def texts(self, selector: str) -> list[str]:
        found = self._post("elements", using="css selector", value=selector)
        return [str(self._get(f"element/{element[_ELEMENT]}/text")) for element in found]

    def click(self, selector: str) -> None:
        self._post(f"element/{self._find(selector)}/click")

    def type(self, selector: str, text: str) -> None:
        """Replace what a field holds; a file is chosen by its path."""
        element = self._find(selector)
        if not selector.endswith("[type=file]"):
            self._post(f"element/{element}/clear")
        self._post(f"element/{element}/value", text=text)

    def drop(self, selector: str, *files: Path) -> None:
        """Drag files from the desktop onto an element."""
        middle = """const box = document.querySelector(arguments[0]); box.scrollIntoView({block: 'center'});
            const {x, y, width, height} = box.getBoundingClientRect(); return [x + width * 0.8, y + height / 2]"""
        x, y = self._post("execute/sync", script=middle, args=[selector])
        data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self._devtools("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def script(self, code: str) -> Any:
        return self._post("execute/sync", script=code, args=[])

    def wait(self, condition: Callable[[], object], seconds: float = 120) -> None:
        """Wait until something holds; elements that are gone meanwhile count as "not yet"."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if condition():
                    return
            except LookupError:
                pass
            assert time.monotonic() < deadline, f"still at {self.address}: {self.text('body')}"
            time.sleep(0.05)

    def tabs(self) -> list[str]:
        return list(self._get("window/handles"))

    def new_tab(self) -> str:
        return str(self._post("window/new", type="tab")["handle"])

    def switch(self, tab: str) -> None:
        self._post("window", handle=tab)

    def resize(self, width: int, height: int = 900) -> None:
        self._post("window/rect", width=width, height=height)

    def look(self, path: Path, width: int, *, dark: bool = False, height: int = 900) -> None:
        """Save a picture of the whole page at a width, in light or dark."""
        self._devtools("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        ])  # fmt: skip
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._devtools("Emulation.setScrollbarsHidden", hidden=True)
        self._devtools("Emulation.setDeviceMetricsOverride", **size)
        shot = self._devtools("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))
        self._devtools("Emulation.clearDeviceMetricsOverride")

    def width_needed(self, width: int) -> int:
        """Return how wide the page is in a window of that width: more if something does not fit."""
        return int(self.script_at(width, "return document.documentElement.scrollWidth"))

    def script_at(self, width: int, code: str) -> Any:
        """Return what a script gives in a window of that width."""
        self._devtools("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        found = self.script(code)
        self._devtools("Emulation.clearDeviceMetricsOverride")
        return found

    def _devtools(self, command: str, **values: Any) -> Any:
        return self._post("goog/cdp/execute", cmd=command, params=values)

    def _find(self, selector: str) -> str:
        return str(self._post("element", using="css selector", value=selector)[_ELEMENT])

    def _get(self, path: str) -> Any:
        return _call(f"{self._session}/{path}")

    def _post(self, path: str, **values: Any) -> Any:
        return _call(f"{self._session}/{path}", values)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser with a profile of its own, which ends with the block."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        driver = subprocess.Popen([str(DRIVER), "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert driver.stdout is not None
        started = next(line for line in driver.stdout if b"started successfully on port" in line)
        server = f"http://127.0.0.1:{int(started.split()[-1].rstrip(b'.'))}"
        options = {"binary": CHROMIUM, "args": [*_FLAGS, f"--user-data-dir={profile}"]}
        # Looking for an element waits for it: after a click the page that it leads to may still be loading.
        wanted = {"alwaysMatch": {"goog:chromeOptions": options, "timeouts": {"implicit": 5_000}}}
        session = ""
        try:
            session = _call(f"{server}/session", {"capabilities": wanted})["sessionId"]
            yield Browser(server, session)
        finally:
            if session:
                _call(f"{server}/session/{session}", method="DELETE")
            driver.terminate()
            driver.communicate()


def _call(address: str, values: dict[str, Any] | None = None, method: str | None = None) -> Any:
    data = None if values is None else json.dumps(values).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=120) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        problem = json.load(error)["value"]
        raise LookupError(f"{problem['error']}: {problem['message']}") from None
