"""Headless Chromium, driven over its DevTools pipe: no driver, no network."""

import base64
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

# Longest wait for a message of the browser, which may start on a busy machine.
TIMEOUT_S = 120


def find():
    """Path of the browser, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Page:
    """One page of a browser of its own; close() ends the browser."""

    def __init__(self, width=1600, height=1000):
        self.profile = tempfile.mkdtemp(prefix="refract-chromium-")
        commands, self.to_browser = os.pipe()
        self.from_browser, answers = os.pipe()
        # The browser reads commands from 3 and answers on 4.
        self.process = subprocess.Popen(
            [
                "bash", "-c",
                f'exec "$@" 3<&{commands} 4>&{answers}', "bash", find(),
                "--headless=new", "--no-sandbox", "--disable-gpu",
                "--disable-dev-shm-usage", "--no-first-run",
                "--remote-debugging-pipe", "--hide-scrollbars",
                f"--window-size={width},{height}",
                f"--user-data-dir={self.profile}", "about:blank",
            ],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self.buffer = b""
        self.last_id = 0
        self.session = None
        self.events = []
        try:
            target = self.call("Target.createTarget", url="about:blank")
            self.session = self.call(
                "Target.attachToTarget", targetId=target["targetId"],
                flatten=True,
            )["sessionId"]
            for domain in ("Page", "Runtime", "Network"):
                self.call(f"{domain}.enable")
            self.call(
                "Emulation.setDeviceMetricsOverride", width=width,
                height=height, deviceScaleFactor=1, mobile=False,
            )
        except BaseException:
            self.close()
            raise

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.to_browser)
        os.close(self.from_browser)
        shutil.rmtree(self.profile, ignore_errors=True)

    def read(self):
        """The browser's next message."""
        deadline = time.monotonic() + TIMEOUT_S
        while b"\0" not in self.buffer:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self.from_browser], [], [], left)
            data = os.read(self.from_browser, 1 << 16) if ready else b""
            if not data:
                raise AssertionError("the browser ended or does not answer")
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **params):
        self.last_id += 1
        message = {"id": self.last_id, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.last_id:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            if "method" in answer:
                self.events.append(answer)

    def open(self, url):
        """Returns once the page and all its scripts have run."""
        # From elsewhere: another fragment alone would not load it again.
        for address in ("about:blank", url):
            self.events = []
            self.call("Page.navigate", url=address)
            while not self.happened("Page.loadEventFired"):
                self.events.append(self.read())

    def happened(self, method):
        """Parameters of such events since open()."""
        return [e["params"] for e in self.events if e.get("method") == method]

    def evaluate(self, expression):
        result = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True
        )
        if "exceptionDetails" in result:
            raise AssertionError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def middle(self, selector):
        return self.evaluate(
            f"""(() => {{
              const box = document.querySelector({json.dumps(selector)})
                  .getBoundingClientRect();
              return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"""
        )

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, selector):
        self.drag(*self.middle(selector), 0, 0)

    def drag(self, x, y, dx, dy):
        held = {"button": "left", "buttons": 1, "clickCount": 1}
        self.mouse("mouseMoved", x, y)
        self.mouse("mousePressed", x, y, **held)
        if dx or dy:
            self.mouse("mouseMoved", x + dx, y + dy, **held)
        self.mouse("mouseReleased", x + dx, y + dy, **held)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def screenshot(self, path):
        image = self.call("Page.captureScreenshot", format="png")["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(image))
