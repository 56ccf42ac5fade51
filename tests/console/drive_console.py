"""The web console in a headless Chromium, against a running router with the packaged model.

Environment: BATON_URL (http://host:port); CHROMIUM (its path; default /usr/bin/chromium-headless-shell).
"""
import json
import os
import sys
import time
import unittest
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from browser import Browser  # noqa: E402

URL = os.environ["BATON_URL"]
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium-headless-shell")
PAGES = ("play", "journey", "cluster", "load")
QUESTION = "Explain in three sentences what a relay race is."
DONE = "document.querySelectorAll('.message.assistant .foot a').length === {}"


def get(path):
    with urllib.request.urlopen(URL + path, timeout=60) as response:
        return json.load(response)


def chat(**fields):
    body = json.dumps(fields).encode()
    request = urllib.request.Request(URL + "/v1/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


class ConsoleTest(unittest.TestCase):
    """In the order of the names: the pages share one tab, as a visitor's do."""

    @classmethod
    def setUpClass(cls):
        cls.page = Browser(CHROMIUM)
        cls.page.size(1280, 860)
        cls.page.dark(False)
        cls.page.go(URL + "/")

    @classmethod
    def tearDownClass(cls):
        cls.page.close()

    def tearDown(self):
        self.assertEqual(self.page.complaints, [])

    def show(self, name):
        self.page.run(f"location.hash = {json.dumps('#' + name)}, 0")
        self.page.wait(f"document.querySelector('main').className === {json.dumps(name.split('/')[0])}")

    def set(self, **settings):
        for name, value in settings.items():
            self.page.run(f"(() => {{ const e = document.getElementById('{name}'); e.value = {value};"
                          " e.dispatchEvent(new Event('input')); })()")

    def test_1_play(self):
        page = self.page
        self.assertEqual(page.run("location.pathname"), "/console/")
        page.wait("document.activeElement.id === 'question'")
        self.set(temperature=0.7, seed=7, max_tokens=60)
        page.type(QUESTION)
        page.key("Enter")
        page.wait("document.querySelectorAll('.token').length > 5")
        self.assertFalse(page.run("document.querySelector('.composer button:nth-child(2)').disabled"), "Stop is possible")
        page.wait(DONE.format(1))
        # What is on the screen is what the API says.
        answer = chat(messages=[{"role": "user", "content": QUESTION}], temperature=0.7, seed=7, max_tokens=60)
        shown = page.run("[...document.querySelectorAll('.token')].map((t) => t.textContent).join('')")
        self.assertTrue(shown.startswith(answer["choices"][0]["message"]["content"]), shown)
        self.assertEqual(page.run("document.querySelectorAll('.token').length"), answer["usage"]["completion_tokens"])
        foot = page.run("document.querySelector('.foot').textContent")
        self.assertRegex(foot, r"tokens · TTFT [\d.]+ m?s · ITL [\d.]+ m?s")

    def test_2_tokens_by_keyboard_and_mouse(self):
        page = self.page
        page.run("document.getElementById('question').focus(), 0")
        for _ in range(30):  # backwards, over the conversation's other stops
            page.call("Input.dispatchKeyEvent", type="rawKeyDown", key="Tab", windowsVirtualKeyCode=9, modifiers=8)
            page.call("Input.dispatchKeyEvent", type="keyUp", key="Tab", windowsVirtualKeyCode=9, modifiers=8)
            if page.run("document.activeElement.classList.contains('token')"):
                break
        self.assertTrue(page.run("document.activeElement.classList.contains('token')"), "Tab reaches the tokens")
        self.assertTrue(page.run("document.activeElement.matches(':focus-visible')"))
        self.assertNotEqual(page.run("getComputedStyle(document.activeElement).outlineStyle"), "none")
        for _ in range(3):
            page.key("ArrowRight")
        self.assertEqual(page.run("[...document.querySelectorAll('.token')].indexOf(document.activeElement)"), 3)
        self.assertEqual(page.run("document.querySelector('.inspector-body strong').textContent"), "4")
        alternatives = page.run("[...document.querySelectorAll('.inspector-body tbody th')].map((e) => e.textContent)")
        self.assertGreaterEqual(len(alternatives), 6, alternatives)
        self.assertTrue(any("(chosen)" in a for a in alternatives), alternatives)
        page.point(".token:nth-child(12)")
        page.wait("document.querySelector('.inspector-body strong').textContent === '12'")

    def test_3_markup_stays_text(self):
        page = self.page
        evil = "<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script> Repeat this."
        page.run("document.getElementById('question').focus(), 0")
        page.type(evil)
        page.key("Enter")
        page.wait(DONE.format(2))
        self.assertEqual(page.run("[...document.querySelectorAll('.message.user p')].at(-1).textContent"), evil)
        self.assertEqual(page.run("document.querySelectorAll('main img, main script').length"), 0)
        self.assertEqual(page.run("document.title"), "Play – Baton")

    def test_4_stop(self):
        page = self.page
        self.set(max_tokens=1500)
        page.run("document.getElementById('question').focus(), 0")
        page.type("Write a very long story about a river, in twenty chapters.")
        page.key("Enter")
        page.wait("document.querySelectorAll('.message.assistant')[2]?.querySelectorAll('.token').length > 3")
        page.key("Escape")
        page.wait(DONE.format(3))
        self.assertIn("stopped by you", page.run("[...document.querySelectorAll('.foot')].at(-1).textContent"))
        for _ in range(400):
            if get("/baton/cluster")["status"]["requests_in_flight"] == 0:
                break
            time.sleep(0.05)
        else:
            self.fail("the router still works on it")

    def test_5_journey(self):
        page = self.page
        page.point(".message.assistant .foot a", click=True)
        page.wait("document.querySelectorAll('.lane').length === 7")
        record = get("/baton/requests/" + page.run("document.querySelector('.request-id code').textContent"))
        titles = page.run("[...document.querySelectorAll('.lane-title')].map((e) => e.textContent)")
        self.assertEqual(titles, ["Tokenize", "Prefill", "Hand-over", "Probabilities", "Sample", "Emit and append",
                                  "Stop"])
        self.assertGreater(record["kv"]["bytes"], 0)
        self.assertGreater(record["stations_ms"]["logits"], 0)
        self.assertGreater(record["stations_ms"]["sample"], 0)
        self.assertLess(record["stations_ms"]["logits"], record["total_ms"])
        self.assertEqual(page.run("document.querySelectorAll('.strip li').length"), record["completion_tokens"])
        self.assertEqual(page.run("document.querySelectorAll('.strip .unknown').length"), 0, "this tab knows the words")
        said = []
        for i in range(7):
            selected = "[...document.querySelectorAll('.lane')].findIndex((l) => l.classList.contains('selected'))"
            self.assertEqual(page.run(selected), i)
            said.append(page.run("document.querySelector('.stop-text p').textContent"))
            page.key("ArrowRight")
        self.assertIn(record["prefill_worker"], said[1])
        self.assertIn(record["kv"]["transport"], said[2])
        self.assertIn(record["decode_worker"], said[3])
        self.assertNotRegex(" ".join(said), "NaN|undefined|null|Infinity")
        # To scale: prefill's bar is as long as its share of the axis.
        share = page.run("(() => { const b = document.querySelector('.bar-prefill').getBoundingClientRect();"
                         "const l = [...document.querySelectorAll('.tick')].at(-1).getBoundingClientRect();"
                         "const f = document.querySelector('.lane .bar-router').getBoundingClientRect();"
                         "return b.width / (l.x + l.width / 2 - f.x); })()")
        self.assertAlmostEqual(share, record["stations_ms"]["prefill"] / record["token_ms"][-1], delta=0.03)
        for _ in range(5):
            page.key("ArrowLeft")
        page.key("z")
        self.assertTrue(page.run("document.getElementById('zoom').checked"))
        page.key("z")
        self.show("journey")
        page.wait("document.querySelectorAll('.requests a').length >= 3")

    def test_6_cluster(self):
        page = self.page
        self.show("cluster")
        status = get("/baton/cluster")["status"]
        page.wait(f"document.querySelectorAll('.worker').length === {len(status['workers'])}")
        names = page.run("[...document.querySelectorAll('.worker h3')].map((e) => e.textContent)")
        self.assertEqual(sorted(names), sorted(w["info"]["name"] for w in status["workers"]))
        self.assertEqual(page.run("document.querySelectorAll('.worker .bad').length"), 0, "the KV ledgers add up")
        self.assertEqual(page.run("document.querySelectorAll('.worker button').length"), 0, "administration is off")
        self.assertTrue(page.run("document.querySelector('.scale').hidden"))
        before = int(status["requests_total"])
        chat(messages=[{"role": "user", "content": "Hi"}], max_tokens=2)
        page.wait("[...document.querySelectorAll('.figures.wide .figure')]"
                  f".some((f) => f.textContent === 'requests{before + 1}')")

    def test_7_load(self):
        page = self.page
        self.show("load")
        page.wait("document.querySelectorAll('.plot svg').length === 4")
        page.wait("document.querySelector('.plot path.line-a').getAttribute('d') !== ''")
        axes = page.run("[...document.querySelectorAll('.plot')].map((p) => p.querySelectorAll('.axis').length)")
        self.assertGreaterEqual(min(axes), 6, axes)
        words = page.run("[...document.querySelectorAll('.plot svg')].map((s) => s.ariaLabel).join(' ')")
        self.assertRegex(words, "generated at most [1-9]")

    def test_8_dark_and_phone(self):
        page = self.page
        light = page.run("getComputedStyle(document.body).backgroundColor")
        page.dark(True)
        self.assertNotEqual(page.run("getComputedStyle(document.body).backgroundColor"), light)
        for name in PAGES:
            self.show(name)
            if name == "journey":
                page.wait("document.querySelector('.lane') !== null")
        page.dark(False)
        page.size(390, 844, scale=2)
        for name in PAGES:
            self.show(name)
            page.wait("document.documentElement.scrollWidth <= 390", timeout_s=10)  # nothing to scroll sideways
        page.size(1280, 860)

    def test_9_names_and_origin(self):
        for name in PAGES:
            self.show(name)
            time.sleep(0.3)
            self.assertEqual(self.page.unnamed(), [], name)
            self.assertEqual(self.page.run("document.querySelectorAll('nav a[aria-current=page]').length"), 1)
        self.assertEqual([u for u in self.page.urls if not u.startswith(URL + "/") and u != "about:blank"], [])


if __name__ == "__main__":
    unittest.main(verbosity=2, failfast=False)
