"""genai-bench, unchanged, against a running router.

Environment: BATON_URL, BATON_TOKENIZER. What it needs to know: it patches Python's sockets (gevent) before it loads
huggingface_hub, which then fails on select.epoll: load transformers first; it says how many requests have ended only now and
then, and so sends a few more than it was asked for and drops those that still run.
"""
import collections
import glob
import json
import os
import subprocess
import sys
import tempfile
import unittest

import router_counts
from router_counts import OUTPUT_TOKENS, PROMPT_TOKENS

REQUESTS = 12
SCENARIO = f"D({PROMPT_TOKENS},{OUTPUT_TOKENS})"
START = "import sys, transformers; from genai_bench.cli.cli import cli; sys.argv[0] = 'genai-bench'; cli()"


class GenaiBenchTest(unittest.TestCase):
    def test_text_to_text(self):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-B", "-c", START, "benchmark", "--api-backend", "vllm", "--api-base", router_counts.URL,
                       "--api-key", "none", "--api-model-name", router_counts.MODEL, "--model", "served",
                       "--model-tokenizer", os.environ["BATON_TOKENIZER"], "--task", "text-to-text", "--num-concurrency", "2",
                       "--traffic-scenario", SCENARIO, "--max-time-per-run", "1", "--max-requests-per-run", str(REQUESTS),
                       "--additional-request-params", '{"temperature":0,"ignore_eos":true}',
                       "--experiment-base-dir", folder, "--experiment-folder-name", "run"]
            ended = subprocess.run(command, cwd=folder, env={**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9"}, timeout=400,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            files = glob.glob(folder + f"/run/D{PROMPT_TOKENS}_{OUTPUT_TOKENS}_*.json")
            self.assertEqual((ended.returncode, len(files)), (0, 1), ended.stdout)
            with open(files[0], encoding="utf-8") as file:
                result = json.load(file)
        all_of_them = result["aggregated_metrics"]
        self.assertEqual((all_of_them["num_error_requests"], all_of_them["error_codes_frequency"]), (0, {}))
        self.assertGreaterEqual(all_of_them["num_completed_requests"], REQUESTS)
        own = json.loads(router_counts.get("/baton/requests"))["requests"]
        counted = collections.Counter((one["prompt_tokens"], one["completion_tokens"]) for one in own if one["code"] == "OK")
        seen = collections.Counter((one["num_input_tokens"], one["num_output_tokens"])
                                   for one in result["individual_request_metrics"])
        self.assertEqual(seen - counted, collections.Counter(), "each request that it saw is one that the router counted")
        times = all_of_them["stats"]
        router_counts.print_times("genai-bench", 1000 * times["ttft"]["p50"], 1000 * times["tpot"]["p50"], sum(seen.values()))


if __name__ == "__main__":
    unittest.main(verbosity=2)
