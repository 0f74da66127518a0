"""A headless Chromium driven over its own pipe: what a page shows, asked of a real browser. Tests are skipped without one."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from waiting import HANG

NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
CHROMIUM = next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page of a browser of its own. Use as a context manager."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()

        def wire() -> None:  # the browser reads its file 3 and writes its file 4
            a, b = os.dup(to_read), os.dup(to_write)
            os.dup2(a, 3)
            os.dup2(b, 4)

        options = ["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                   "--no-first-run", "--hide-scrollbars", f"--user-data-dir={profile}"]  # fmt: skip
        self._process = subprocess.Popen(
            [CHROMIUM, *options], preexec_fn=wire, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(to_write)
        self._number, self._rest, self._session = 0, b"", None
        self.problems: list[str] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + HANG
        while time.monotonic() < deadline:
            while b"\0" in self._rest:
                text, _, self._rest = self._rest.partition(b"\0")
                said = json.loads(text)
                if said.get("id") == self._number:
                    assert "error" not in said, said
                    return said["result"]
                self._note(said)
            if select.select([self._from], [], [], 1.0)[0]:
                self._rest += os.read(self._from, 1 << 20)
        raise AssertionError(f"the browser did not answer {method}")

    def _note(self, said: dict[str, Any]) -> None:
        parameters = said.get("params", {})
        if said.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(parameters["exceptionDetails"])[:400])
        if said.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.problems.append(parameters["entry"]["text"])

    def open(self, url: str, width: int, height: int = 900) -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.ask("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """What an expression gives; None where it throws, as before the page is there."""
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until an expression is true, and return what it gives."""
        deadline = time.monotonic() + HANG
        while time.monotonic() < deadline:
            found = self.value(expression)
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError(f"never true: {expression}; the page says: {self.value('document.body.innerText')}; {self.problems}")

    def picture(self, path: Path) -> None:
        """The whole page as it is now."""
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        data = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
