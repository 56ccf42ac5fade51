"""What the router itself says of the requests that a client sent, for the tests of clients to compare with.

Environment: BATON_URL (http://host:port).
"""
import json
import os
import statistics
import urllib.request

URL = os.environ["BATON_URL"]


def get(path):
    with urllib.request.urlopen(URL + path, timeout=60) as response:
        return response.read().decode()


MODEL = json.loads(get("/v1/models"))["data"][0]["id"]


def tokens_of(text):
    """Tokens of a prompt as it is."""
    body = json.dumps({"prompt": text}).encode()
    request = urllib.request.Request(URL + "/tokenize", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)["count"]


class Counts:
    """Of the requests between its making and take(): the router's counters, and the times of each."""

    def __init__(self):
        self._before = self._read()

    @staticmethod
    def _read():
        sums = dict.fromkeys(("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total"), 0)
        refused = 0
        for line in get("/metrics").splitlines():
            name = line.split("{")[0].split(" ")[0]
            if name in sums:
                sums[name] += int(float(line.rsplit(" ", 1)[1]))
            if name == "baton_http_requests_total" and 'code="200"' not in line:
                refused += int(float(line.rsplit(" ", 1)[1]))
        return {"prompt": sums["vllm:prompt_tokens_total"], "generated": sums["vllm:generation_tokens_total"],
                "choices": sums["vllm:request_success_total"], "refused": refused}

    def take(self):
        """{"prompt", "generated", "choices", "refused"} since the last time."""
        now = self._read()
        result = {key: now[key] - self._before[key] for key in now}
        self._before = now
        return result


def print_times(client, ttft_ms, itl_ms, requests):
    """A client's medians beside the router's own for the latest `requests` requests. Never judged: machines differ."""
    own = json.loads(get("/baton/requests"))["requests"][:requests]
    ours = {name: statistics.median(one[name] for one in own if one.get(name) is not None) for name in ("ttft_ms", "itl_p50_ms")}
    print(f"{client}: {requests} requests; medians in ms, its own and the router's: TTFT {ttft_ms:.1f} and "
          f"{ours['ttft_ms']:.1f}, ITL {itl_ms:.2f} and {ours['itl_p50_ms']:.2f}")
