"""guidellm, unchanged, against a running router.

Environment: BATON_URL, BATON_TOKENIZER. What it needs to know: it wants torch, for a loader of its own synthetic prompts; the
counts it reports are the server's usage.
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


class GuidellmTest(unittest.TestCase):
    def test_concurrent(self):
        counts = router_counts.Counts()
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-B", "-m", "guidellm", "run",
                       "--backend", f"kind=openai_http,target={router_counts.URL},model={router_counts.MODEL}",
                       "--profile", "kind=concurrent,streams=2", "--constraint", f"kind=max_requests,count={REQUESTS}",
                       "--tokenizer", "kind=huggingface_auto,model=" + os.environ["BATON_TOKENIZER"],
                       "--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}",
                       "--output", f"kind=json,path={folder}/out.json", "--disable-console-interactive"]
            ended = subprocess.run(command, cwd=folder, env={**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9"}, timeout=400,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
            self.assertEqual(ended.returncode, 0, ended.stdout)
            with open(folder + "/out.json", encoding="utf-8") as file:
                metrics = json.load(file)["benchmarks"][0]["metrics"]
        self.assertEqual(metrics["request_totals"],
                         {"successful": REQUESTS, "errored": 0, "incomplete": 0, "total": REQUESTS})
        seen = {name: metrics[name + "_token_count"]["successful"]["total_sum"] for name in ("prompt", "output")}
        self.assertEqual(counts.take(), {"prompt": seen["prompt"], "generated": seen["output"], "choices": REQUESTS, "refused": 0})
        times = [metrics[name]["successful"]["median"] for name in ("time_to_first_token_ms", "inter_token_latency_ms")]
        router_counts.print_times("guidellm", *times, REQUESTS)


if __name__ == "__main__":
    unittest.main(verbosity=2)
