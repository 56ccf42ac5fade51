"""Takes the pictures of the console in docs/images, from a running router (`--mode disaggregated`) that it keeps busy.

  BATON_URL=http://127.0.0.1:8000 python3 tests/console/take_screenshots.py docs/images
"""
import json
import os
import random
import sys
import threading
import time
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from browser import Browser  # noqa: E402

URL = os.environ["BATON_URL"]
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium-headless-shell")
QUESTION = "Explain in three sentences what a relay race is."
TOPICS = ("rivers", "bridges", "bread", "the moon", "clocks", "libraries", "trains", "whales", "paper", "gardens")


def keep_busy(stop, most, words, pause):
    """Chats of random length, one after another, with pauses."""
    dice = random.Random(most)
    while not stop.is_set():
        content = f"{dice.randint(0, 10**6)} Tell me about {dice.choice(TOPICS)}." + " and so on" * dice.randint(0, words)
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": dice.randint(10, most)}
        request = urllib.request.Request(URL + "/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as response:
            response.read()
        stop.wait(dice.random() * pause)


def main(folder):
    page = Browser(CHROMIUM)

    def picture(name):
        time.sleep(0.4)
        page.screenshot(os.path.join(folder, f"console-{name}.png"))

    def show(name, ready):
        page.run(f"location.hash = {json.dumps('#' + name)}, 0")
        page.wait(f"document.querySelector({json.dumps(ready)}) !== null")

    page.size(1280, 800)
    page.dark(False)
    page.go(URL + "/")
    page.wait("document.activeElement.id === 'question'")
    page.run("(() => { for (const [id, value] of [['temperature', 0.7], ['seed', 7], ['max_tokens', 60]]) {"
             "const e = document.getElementById(id); e.value = value; e.dispatchEvent(new Event('input')); } })()")
    page.type(QUESTION)
    page.key("Enter")
    page.wait("document.querySelector('.message.assistant .foot a') !== null")
    page.run("document.activeElement.blur(), 0")
    page.point(".token:nth-child(14)")
    picture("play")
    page.dark(True)
    picture("play-dark")
    page.dark(False)
    page.point(".message.assistant .foot a", click=True)
    page.wait("document.querySelectorAll('.lane').length === 7")
    page.run("document.activeElement.blur(), 0")
    page.key("ArrowRight")
    page.key("ArrowRight")
    page.size(1280, 1000)
    picture("journey")
    page.size(390, 844, scale=2)
    page.run("document.querySelector('.timeline').scrollIntoView({ block: 'center' }), 0")
    picture("journey-phone")
    page.size(1280, 800)

    stop = threading.Event()
    shapes = ((150, 5, 1), (60, 60, 3), (90, 20, 6), (40, 90, 8))
    threads = [threading.Thread(target=keep_busy, args=(stop, *shape)) for shape in shapes]
    for thread in threads:
        thread.start()
        time.sleep(7)
    time.sleep(25)
    show("cluster", ".worker")
    picture("cluster")
    show("load", ".plot svg")
    page.run("(() => { const e = document.getElementById('span'); e.value = 60;"
             " e.dispatchEvent(new Event('change')); })()")
    picture("load")
    stop.set()
    for thread in threads:
        thread.join()
    page.close()
    print("complaints:", page.complaints)


if __name__ == "__main__":
    main(sys.argv[1])
