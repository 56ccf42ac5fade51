"""A headless Chromium by the DevTools protocol over a pipe: messages of JSON that end in a zero byte, on its file
descriptors 3 and 4. Nothing but Python's own library.
"""
import base64
import fcntl
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time

TIMEOUT_S = 60


class Browser:
    """One browser with one page. What the page complains of is in `complaints`; urls it asked for in `urls`."""

    def __init__(self, binary):
        self.complaints, self.urls = [], []
        self._replies, self._next = {}, 0
        self._profile = tempfile.mkdtemp(prefix="baton-chromium-")
        to_read, self._to = os.pipe()
        self._from, from_write = os.pipe()
        # Out of the way of 3 and 4.
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (to_read, from_write)]

        def give_ends():
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        arguments = ["--headless", "--disable-gpu", "--no-first-run", "--disable-extensions", "--hide-scrollbars",
                     "--disable-background-networking", "--disable-component-update", "--force-color-profile=srgb",
                     "--disable-dev-shm-usage", "--no-proxy-server", "--lang=en-US", "--remote-debugging-pipe",
                     "--user-data-dir=" + self._profile]
        if os.getuid() == 0:
            arguments.append("--no-sandbox")  # Chromium's needs a user that is not root
        self._log = open(os.path.join(self._profile, "stderr"), "w+")
        self._process = subprocess.Popen([binary, *arguments, "about:blank"], close_fds=False, preexec_fn=give_ends,
                                         stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)
        for fd in (to_read, from_write, *ends):
            os.close(fd)
        threading.Thread(target=self._read, daemon=True).start()
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(domain + ".enable")

    def close(self):
        self._process.kill()
        self._process.wait()
        self._log.close()
        shutil.rmtree(self._profile, ignore_errors=True)

    def _read(self):
        data = b""
        while chunk := os.read(self._from, 1 << 16):
            *messages, data = (data + chunk).split(b"\0")
            for message in messages:
                self._take(json.loads(message))
        for waiting in list(self._replies.values()):
            waiting.put({"error": {"message": "the browser ended"}})

    def _take(self, message):
        if "id" in message:
            self._replies[message["id"]].put(message)
            return
        params, method = message.get("params", {}), message["method"]
        if method == "Runtime.consoleAPICalled":
            said = [a.get("value", a.get("description")) for a in params["args"]]
            self.complaints.append(f"console.{params['type']}: {said}")
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append("exception: " + details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded":
            entry = params["entry"]
            self.complaints.append(f"{entry['level']}: {entry['text']} {entry.get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.urls.append(params["request"]["url"])

    def call(self, method, **params):
        self._next += 1
        message = {"id": self._next, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        waiting = self._replies[self._next] = queue.Queue()
        os.write(self._to, json.dumps(message).encode() + b"\0")
        try:
            reply = waiting.get(timeout=TIMEOUT_S)
        except queue.Empty:
            self._log.seek(0)
            raise TimeoutError(f"{method} was not answered; the browser said: {self._log.read()[-2000:]}") from None
        if "error" in reply:
            raise RuntimeError(f"{method}: {reply['error']['message']}")
        return reply["result"]

    def run(self, expression):
        """The value of a JavaScript expression, awaited."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"].get("description", expression))
        return result["result"].get("value")

    def wait(self, expression, timeout_s=TIMEOUT_S):
        """Until it is truthy; its value."""
        until = time.monotonic() + timeout_s
        while not (value := self.run(expression)):
            if time.monotonic() > until:
                text = self.run("document.body.innerText")[:1500]
                raise TimeoutError(f"never true: {expression}; the page says: {text}")
            time.sleep(0.05)
        return value

    def go(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def key(self, key, text=None):
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39}
        common = {"key": key, "windowsVirtualKeyCode": codes.get(key, ord(key.upper()[0]))}
        text = text or {"Enter": "\r"}.get(key, key if len(key) == 1 else None)
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **common,
                  **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def point(self, selector, click=False):
        """Moves the mouse to the middle of an element."""
        x, y = self.run(f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
                        " e.scrollIntoView({block: 'center'}); const r = e.getClientRects()[0]; return [r.x + r.width / 2, r.y + r.height / 2]; })()")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def size(self, width, height, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
                  mobile=width < 600)

    def dark(self, on):
        scheme = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def unnamed(self):
        """Roles of what can be operated and has no name for a screen reader."""
        operable = {"button", "link", "textbox", "spinbutton", "combobox", "checkbox"}
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [n["role"]["value"] for n in nodes if not n.get("ignored") and n.get("role", {}).get("value") in operable
                and not n.get("name", {}).get("value")]

    def screenshot(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
