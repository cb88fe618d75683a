"""A real browser for the tests: chromedriver speaks JSON over HTTP, so no further package is needed."""

import base64
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)
# A proxy of the environment must not stand between the test and the local driver.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Chromium:
    """One open window."""

    def __init__(self, port: int, profile: Path, binary: str) -> None:
        self.address = f"http://127.0.0.1:{port}/session"
        options = {"binary": binary, "args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
        }
        session = self.call("POST", "", {"capabilities": {"alwaysMatch": wanted}})
        self.address += f"/{session['sessionId']}"

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if method == "GET" else json.dumps(body or {}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.address + path, data, headers, method=method)
        try:
            with OPENER.open(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(error.read().decode()[:600]) from None

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def resize(self, width: int, height: int, dark: bool = False) -> None:
        """The size of the page itself; a headless window cannot be as narrow as a phone."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, page: Path) -> None:
        self.call("POST", "/url", {"url": page.as_uri()})

    def run(self, script: str) -> Any:
        """The value that the body of a JavaScript function returns."""
        return self.call("POST", "/execute/sync", {"script": script, "args": []})

    def hover(self, selector: str) -> None:
        """Move the mouse to the middle of an element, after scrolling to it."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{found}.scrollIntoView({{block: 'center'}})")
        x, y = self.run(
            f"const b = {found}.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]"
        )
        move = {"type": "pointerMove", "duration": 50, "x": round(x), "y": round(y)}
        self.act(
            {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": [move]}
        )

    def click(self, selector: str) -> None:
        self.hover(selector)
        press = [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        self.act({"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": press})

    def press(self, key: str) -> None:
        stroke = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self.act({"type": "key", "id": "keyboard", "actions": stroke})

    def act(self, source: dict[str, Any]) -> None:
        self.call("POST", "/actions", {"actions": [source]})

    def messages(self) -> list[str]:
        """What the console and the page's errors said since the last call."""
        return [entry["message"] for entry in self.call("POST", "/se/log", {"type": "browser"})]

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("GET", "/screenshot")))


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextmanager
def started(profile: Path) -> Iterator[Chromium]:
    """A browser with a fresh profile; without Chromium the test is skipped."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no Chromium here: install the Debian packages chromium and chromium-driver")
    port = _free_port()
    # Its own process group: what the driver starts is ended with it, and nothing else is.
    process = subprocess.Popen(
        [driver, f"--port={port}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    window = None
    try:
        _wait(port, process)
        window = Chromium(port, profile, binary)
        yield window
    finally:
        try:
            if window is not None:
                window.call("DELETE", "")
        finally:
            os.killpg(process.pid, 15)
            process.wait(timeout=20)


def _wait(port: int, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end and process.poll() is None:
        try:
            with OPENER.open(f"http://127.0.0.1:{port}/status", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("chromedriver did not start")
