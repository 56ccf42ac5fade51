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


# What the load generators send: long enough that a client's own milliseconds do not decide its times.
PROMPT_TOKENS = 300
OUTPUT_TOKENS = 32


def print_times(client, ttft_ms, itl_ms, requests):
    """A client's medians beside the router's own for the latest `requests` requests. Never judged: machines differ.

    ITL as these clients define it: of each request the time from its first token to its end, by the number of gaps.
    """
    ended_well = [one for one in json.loads(get("/baton/requests"))["requests"] if one["code"] == "OK"]
    own = ended_well[:requests]
    ttft = statistics.median(one["ttft_ms"] for one in own)
    itl = statistics.median((one["total_ms"] - one["ttft_ms"]) / (one["completion_tokens"] - 1) for one in own
                            if one["completion_tokens"] > 1)
    print(f"{client}: {requests} requests; medians in ms, its own and the router's: TTFT {ttft_ms:.1f} and {ttft:.1f} "
          f"({ttft_ms / ttft:.3f}), ITL {itl_ms:.2f} and {itl:.2f} ({itl_ms / itl:.3f})")
