"""aiperf, unchanged, against a running router.

Environment: BATON_URL; BATON_TOKENIZER (a folder that `baton tokenizer export` made); BATON_PACKAGES (where aiperf is).
What it needs to know: with HF_HUB_OFFLINE it does not find a tokenizer's folder, only the hub's cache, so the hub's address is
set to one where nothing answers; --use-server-token-count takes the server's counts, else input lengths are its own, without a
chat's template, and output lengths are those of the text read again.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

import router_counts
from router_counts import OUTPUT_TOKENS, PROMPT_TOKENS

REQUESTS = 12


def profile(endpoint, *more):
    """What aiperf writes about REQUESTS requests, two at a time."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-sB", os.environ["BATON_PACKAGES"] + "/bin/aiperf", "profile",
                   "--model", router_counts.MODEL, "--url", router_counts.URL, "--endpoint-type", endpoint, "--streaming",
                   "--tokenizer", os.environ["BATON_TOKENIZER"], "--concurrency", "2", "--request-count", str(REQUESTS),
                   "--isl", str(PROMPT_TOKENS), "--isl-stddev", "0", "--osl", str(OUTPUT_TOKENS),
                   "--osl-stddev", "0", "--extra-inputs", "ignore_eos:true", "--random-seed", "1", "--artifact-dir", folder,
                   "--ui", "none", "--no-gpu-telemetry", *more]
        ended = subprocess.run(command, env={**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9"}, timeout=400,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if ended.returncode != 0:
            raise AssertionError(ended.stdout)
        with open(folder + "/profile_export_aiperf.json", encoding="utf-8") as file:
            return json.load(file)


class AiperfTest(unittest.TestCase):
    def check(self, result, taken, client):
        self.assertEqual(result["request_count"]["avg"], REQUESTS)
        self.assertIsNone(result.get("error_request_count"))
        self.assertFalse(result["error_summary"])
        self.assertEqual(result["total_isl"]["avg"], taken["prompt"])
        self.assertEqual(result["total_usage_prompt_tokens"]["avg"], taken["prompt"])
        self.assertEqual(result["total_usage_completion_tokens"]["avg"], taken["generated"])
        self.assertEqual((taken["choices"], taken["generated"], taken["refused"]), (REQUESTS, OUTPUT_TOKENS * REQUESTS, 0))
        router_counts.print_times(client, result["time_to_first_token"]["p50"], result["inter_token_latency"]["p50"], REQUESTS)

    def test_chat(self):
        counts = router_counts.Counts()
        result = profile("chat", "--use-server-token-count")
        self.check(result, counts.take(), "aiperf, chat")

    def test_completions_with_its_own_tokenizer(self):
        counts = router_counts.Counts()
        result = profile("completions")
        self.check(result, counts.take(), "aiperf, completions")


if __name__ == "__main__":
    unittest.main(verbosity=2)
