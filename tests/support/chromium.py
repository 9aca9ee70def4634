"""Headless Chromium, spoken to over its own pipe: no driver, no package, no port."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

__all__ = ["NAMES", "Chromium", "find_browser"]

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
LIMIT_S = 60.0
"""Long enough for a browser on a machine that does much else; nothing is ever waited for so long when all is well."""
KEYS = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9}


def find_browser() -> str | None:
    """Return the browser to use: that of the variable LLM_ENVS_BROWSER, else a relative of Chromium on the path."""
    given = os.environ.get("LLM_ENVS_BROWSER")
    return given or next((found for name in NAMES if (found := shutil.which(name))), None)


class Chromium:
    """One browser with one page at a time. Messages are JSON, ended by a zero byte, on descriptors 3 and 4."""

    def __init__(self, executable: str, profile: str) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (to_read, to_write)]

        def take_pipes() -> None:
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        flags = ["--headless=new", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run", "--mute-audio"]
        flags += ["--disable-dev-shm-usage", "--disable-extensions", "--disable-component-update"]
        flags += ["--disable-background-networking"]
        flags += ["--no-sandbox"] if os.geteuid() == 0 else []  # root has none; the pages are our own, and offline
        self.process = subprocess.Popen(
            [executable, *flags, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=take_pipes,
            close_fds=False,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (to_read, to_write, *high):
            os.close(end)
        self._buffer, self._number, self._session, self._target = b"", 0, "", ""
        self.events: list[dict[str, Any]] = []
        """What the page reported since it was opened: console messages, errors, requests."""

    def open(
        self,
        page: Path | str,
        *,
        width: int = 1200,
        height: int = 900,
        dark: bool = False,
        hash: str = "",
        before: str | None = None,
    ) -> None:
        """Open a file or an address in a new page, with a script to run before its own, and wait until it is drawn."""
        self._leave()
        self._target = str(self.call("Target.createTarget", url="about:blank")["targetId"])
        self._session = str(self.call("Target.attachToTarget", targetId=self._target, flatten=True)["sessionId"])
        self.events.clear()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        if before is not None:
            self.call("Page.addScriptToEvaluateOnNewDocument", source=before)
        address = page if isinstance(page, str) else page.resolve().as_uri()
        self.call("Page.navigate", url=address + hash)
        self.wait("document.readyState === 'complete' && document.querySelector('main h2') !== null")

    def resize(self, width: int, height: int) -> None:
        """Give the window a size; one as narrow as a phone is one."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + LIMIT_S
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            if "method" in answer:
                self.events.append(answer)

    def js(self, expression: str) -> Any:
        """Return the value of an expression in the page; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        """Wait until an expression is true in the page; an error in its script ends the wait."""
        deadline = time.monotonic() + LIMIT_S
        while not self.js(f"Boolean({expression})"):
            assert not any(event["method"] == "Runtime.exceptionThrown" for event in self.events), self.problems()
            assert time.monotonic() < deadline, f"never true: {expression}; {self.problems()}"
            time.sleep(0.02)

    def text(self, selector: str = "main") -> str:
        """Return what an element shows."""
        return str(self.js(f"document.querySelector({json.dumps(selector)}).innerText"))

    def texts(self, selector: str) -> list[str]:
        """Return what all elements show."""
        return list(self.js(f"[...document.querySelectorAll({json.dumps(selector)})].map((one) => one.innerText)"))

    def click(self, selector: str) -> None:
        """Click on the first element."""
        self.js(f"document.querySelector({json.dumps(selector)}).click()")

    def press(self, key: str) -> None:
        """Press a key as a person would: it goes to what has the focus."""
        named = {"key": key, "code": key if key in KEYS else "", "windowsVirtualKeyCode": KEYS.get(key, 0)}
        typed = {"text": "\r"} if key == "Enter" else {} if key in KEYS else {"text": key}
        self.call("Input.dispatchKeyEvent", type="keyDown", **named, **typed)
        self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    def type(self, text: str) -> None:
        """Press one key after the other."""
        for letter in text:
            self.press(letter)

    def choose(self, selector: str, option: str) -> None:
        """Choose an option by its text."""
        self.js(
            f"(() => {{ const box = document.querySelector({json.dumps(selector)});"
            f" box.value = [...box.options].find((one) => one.text === {json.dumps(option)}).value;"
            " box.dispatchEvent(new Event('change')); })()"
        )

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write a picture of what is seen, or of the whole page."""
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(picture))

    def problems(self) -> list[str]:
        """Return errors and warnings that the page reported."""
        found = []
        for event in self.events:
            told = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(told["exceptionDetails"]))
            if event["method"] == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
                found.append(told["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """Return the addresses that the page asked for, itself included."""
        sent = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def go(self, hash: str) -> None:
        """Go to another view of the report, and wait until it is there."""
        if self.js("location.hash") == hash:
            return
        self.js(f"document.querySelector('main h2').dataset.old = 1, location.hash = {json.dumps(hash)}, 0")
        self.wait("document.querySelector('main h2:not([data-old])') !== null")

    def rows(self) -> list[int]:
        """Return the episodes that the report's table shows."""
        found = self.js("[...document.querySelectorAll('tr[data-episode]')].map((row) => Number(row.dataset.episode))")
        return [int(episode) for episode in found]

    def unfold(self) -> None:
        """Open all that is folded."""
        self.js("document.querySelectorAll('details').forEach((one) => { one.open = true; })")

    def _leave(self) -> None:
        """Close the page that is open: its work would go on beside the next one's."""
        self._session = ""
        if self._target:
            self.call("Target.closeTarget", targetId=self._target)
            self._target = ""

    def close(self) -> None:
        """End the browser and what it started."""
        for end in (self._write, self._read):
            os.close(end)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # its own session: children that outlived it
        self.process.wait()

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser said nothing for {LIMIT_S} s"
            data = os.read(self._read, 1 << 16)
            assert data, "the browser ended"
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        return message
