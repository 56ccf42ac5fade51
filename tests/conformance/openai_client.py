"""The openai client, unchanged, against a running router.

Environment: BATON_URL (http://host:port), BATON_EMPTY_URL (a router without workers), BATON_README (path).
"""
import asyncio
import json
import os
import re
import subprocess
import sys
import time
import typing
import unittest
import urllib.request

import openai
import pydantic

URL = os.environ["BATON_URL"]
EMPTY_URL = os.environ["BATON_EMPTY_URL"]
CLIENT = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0, timeout=120)
MODEL = CLIENT.models.list().data[0].id
CHAT = [{"role": "user", "content": "Name three colours."}]
IDS = {"return_token_ids": True}


def post(path, body):
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


def metric(url, name):
    with urllib.request.urlopen(url + "/metrics", timeout=60) as response:
        text = response.read().decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if re.match(name + r"[ {]", line))


def chat(**args):
    return CLIENT.chat.completions.create(
        **{"model": MODEL, "messages": CHAT, "max_tokens": 12, "temperature": 0.7, "seed": 5, **args})


def complete(**args):
    return CLIENT.completions.create(
        **{"model": MODEL, "prompt": "The capital of France is", "max_tokens": 12, "temperature": 0, **args})


class Models(unittest.TestCase):
    def test_list_and_retrieve(self):
        model = CLIENT.models.retrieve(MODEL)
        self.assertEqual(model.id, MODEL)
        self.assertEqual(model.object, "model")
        self.assertGreater(model.max_model_len, 0)

    def test_unknown(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            CLIENT.models.retrieve("gpt-17")
        self.assertEqual(caught.exception.code, "model_not_found")


class Metrics(unittest.TestCase):
    def test_the_names_dashboards_look_for(self):
        prompts, hits = metric(URL, "vllm:prefix_cache_queries_total"), metric(URL, "vllm:prefix_cache_hits_total")
        answer = chat(max_tokens=3)
        self.assertEqual(metric(URL, "vllm:prefix_cache_queries_total") - prompts, answer.usage.prompt_tokens)
        self.assertEqual(metric(URL, "vllm:prefix_cache_hits_total") - hits,
                         answer.usage.prompt_tokens_details.cached_tokens)
        with urllib.request.urlopen(URL + "/metrics", timeout=60) as response:
            text = response.read().decode()
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total",
                     "time_to_first_token_seconds_count", "inter_token_latency_seconds_count",
                     "e2e_request_latency_seconds_count", "request_queue_time_seconds_count",
                     "request_prefill_time_seconds_count", "request_decode_time_seconds_count",
                     "request_inference_time_seconds_count", "request_time_per_output_token_seconds_count",
                     "request_prompt_tokens_count", "request_generation_tokens_count", "prompt_tokens_total",
                     "generation_tokens_total", "request_success_total"):
            self.assertIn("\nvllm:%s{" % name, text)


class Chat(unittest.TestCase):
    def test_one_piece(self):
        first, second = chat(extra_body=IDS), chat()
        choice = first.choices[0]
        self.assertEqual(choice.message.role, "assistant")
        self.assertEqual(choice.message.content, second.choices[0].message.content, "the seed makes it repeatable")
        self.assertIn(choice.finish_reason, ("stop", "length"))
        self.assertEqual(first.usage.completion_tokens, len(choice.token_ids))
        self.assertEqual(first.usage.prompt_tokens, post("/tokenize", {"messages": CHAT})["count"])
        self.assertEqual(first.usage.total_tokens, first.usage.prompt_tokens + first.usage.completion_tokens)
        self.assertGreaterEqual(second.usage.prompt_tokens_details.cached_tokens, 0)

    def test_stream_equals_one_piece(self):
        whole = chat()
        text, roles, finish, usage = "", 0, [], None
        for chunk in chat(stream=True, stream_options={"include_usage": True}):
            self.assertEqual(chunk.object, "chat.completion.chunk")
            if chunk.usage:
                usage = chunk.usage
                self.assertEqual(chunk.choices, [])
                continue
            delta = chunk.choices[0].delta
            roles += delta.role is not None
            text += delta.content or ""
            if chunk.choices[0].finish_reason:
                finish.append(chunk.choices[0].finish_reason)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(finish, [whole.choices[0].finish_reason])
        self.assertEqual(roles, 1)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual(usage.prompt_tokens, whole.usage.prompt_tokens)

    def test_four_choices(self):
        whole = chat(n=4, temperature=1.5)
        self.assertEqual([c.index for c in whole.choices], [0, 1, 2, 3])
        texts = [c.message.content for c in whole.choices]
        self.assertGreater(len(set(texts)), 1, texts)
        streamed = [""] * 4
        for chunk in chat(n=4, temperature=1.5, stream=True):
            streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        self.assertEqual(streamed, texts)

    def test_logprobs(self):
        answer = chat(logprobs=True, top_logprobs=3)
        content = answer.choices[0].logprobs.content
        self.assertEqual(len(content), answer.usage.completion_tokens)
        for token in content:
            self.assertLessEqual(token.logprob, 0)
            self.assertEqual(len(token.top_logprobs), 3)
            best = [t.logprob for t in token.top_logprobs]
            self.assertEqual(best, sorted(best, reverse=True))
        raw = b"".join(bytes(t.bytes) for t in content)
        self.assertTrue(raw.startswith(answer.choices[0].message.content.encode()))
        streamed = [t for chunk in chat(logprobs=True, top_logprobs=3, stream=True)
                    if chunk.choices[0].logprobs for t in chunk.choices[0].logprobs.content]
        self.assertEqual(streamed, content)

    def test_json_object(self):
        choice = chat(response_format={"type": "json_object"}, max_tokens=400, temperature=0).choices[0]
        if choice.finish_reason == "stop":
            self.assertIsInstance(json.loads(choice.message.content), dict)
        else:
            self.assertTrue(choice.message.content.lstrip().startswith("{"))

    def test_json_schema_by_the_clients_own_parser(self):
        class Answer(pydantic.BaseModel):
            colour: typing.Literal["red", "green", "blue"]
            warm: bool

        def ask(seed):
            return CLIENT.chat.completions.parse(model=MODEL, messages=CHAT, response_format=Answer, max_tokens=200,
                                                 temperature=1, seed=seed)
        first = ask(1)
        self.assertIsInstance(first.choices[0].message.parsed, Answer)
        self.assertEqual(first.choices[0].finish_reason, "stop")
        self.assertEqual(first.choices[0].message.content, ask(1).choices[0].message.content)
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in CLIENT.chat.completions.create(
            model=MODEL, messages=CHAT, max_tokens=200, temperature=1, seed=1, stream=True,
            response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": Answer.model_json_schema()}}))
        self.assertIsInstance(Answer.model_validate_json(streamed), Answer)

    def test_stop(self):
        text = chat(temperature=0).choices[0].message.content
        stop = text[4:6]
        stopped = chat(temperature=0, stop=[stop, "never this"])
        self.assertEqual(stopped.choices[0].message.content, text[:text.index(stop)])
        self.assertEqual(stopped.choices[0].finish_reason, "stop")
        self.assertEqual(stopped.choices[0].stop_reason, stop)

    def test_logit_bias_and_max_completion_tokens(self):
        answer = chat(logit_bias={"42": 100}, temperature=0, max_completion_tokens=3, max_tokens=openai.NOT_GIVEN,
                      extra_body={**IDS, "ignore_eos": True})
        self.assertEqual(answer.choices[0].token_ids, [42, 42, 42])
        self.assertEqual(answer.choices[0].finish_reason, "length")

    def test_headers(self):
        raw = CLIENT.chat.completions.with_raw_response.create(
            model=MODEL, messages=CHAT, max_tokens=1, extra_headers={"X-Request-Id": "conformance-1"})
        self.assertEqual(raw.headers["x-request-id"], "conformance-1")
        self.assertEqual(raw.parse()._request_id, "conformance-1")


class Completions(unittest.TestCase):
    def test_prompts_as_text_and_ids_are_the_same(self):
        prompts = ["The capital of France is", "Once upon a"]
        ids = [post("/tokenize", {"prompt": p})["tokens"] for p in prompts]
        by_text, by_ids = complete(prompt=prompts), complete(prompt=ids)
        self.assertEqual([c.text for c in by_text.choices], [c.text for c in by_ids.choices])
        self.assertEqual(by_text.usage.prompt_tokens, sum(map(len, ids)))
        self.assertEqual(complete(prompt=ids[0]).choices[0].text, by_text.choices[0].text)
        self.assertEqual(post("/detokenize", {"tokens": ids[1]})["prompt"], prompts[1])

    def test_echo_and_stream(self):
        whole = complete(echo=True)
        self.assertTrue(whole.choices[0].text.startswith("The capital of France is"))
        self.assertEqual("".join(c.choices[0].text for c in complete(echo=True, stream=True)), whole.choices[0].text)

    def test_logprobs(self):
        answer = complete(logprobs=2)
        logprobs = answer.choices[0].logprobs
        self.assertEqual(len(logprobs.tokens), answer.usage.completion_tokens)
        self.assertEqual("".join(logprobs.tokens)[:len(answer.choices[0].text)], answer.choices[0].text)
        for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs):
            self.assertEqual(top[token], logprob)
            self.assertEqual(max(top.values()), logprob, "greedy takes the best")
        self.assertEqual(logprobs.text_offset[:2], [0, len(logprobs.tokens[0])])


class Tools(unittest.TestCase):
    """The packaged model's template knows no tools: they are told in words, and required calls are kept to their schema."""

    WEATHER = {"type": "function", "function": {
        "name": "get_weather", "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20},
                                                        "unit": {"enum": ["celsius", "fahrenheit"]}},
                       "required": ["city", "unit"], "additionalProperties": False}}}
    TIME = {"type": "function", "function": {
        "name": "get_time", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}
    ASK = [{"role": "user", "content": "What is the weather in Paris?"}]

    def ask(self, **args):
        return chat(messages=self.ASK, tools=[self.WEATHER, self.TIME], max_tokens=96, **args)

    def check(self, call, name=None):
        self.assertIn(call.function.name, [name] if name else ["get_weather", "get_time"])
        arguments = json.loads(call.function.arguments)
        if call.function.name == "get_time":
            self.assertEqual(arguments, {})
        else:
            self.assertEqual(set(arguments), {"city", "unit"})
            self.assertIn(arguments["unit"], ["celsius", "fahrenheit"])

    def test_required(self):
        for seed in range(4):
            choice = self.ask(tool_choice="required", seed=seed, temperature=1).choices[0]
            self.assertEqual(choice.finish_reason, "tool_calls")
            self.assertEqual(len(choice.message.tool_calls), 1)
            self.check(choice.message.tool_calls[0])
            self.assertFalse(choice.message.content)

    def test_named_and_streamed_and_answered(self):
        named = {"type": "function", "function": {"name": "get_weather"}}
        whole = self.ask(tool_choice=named).choices[0].message.tool_calls[0]
        self.check(whole, "get_weather")
        name, arguments, finish = "", "", None
        for chunk in self.ask(tool_choice=named, stream=True):
            for call in chunk.choices[0].delta.tool_calls or []:
                name += call.function.name or ""
                arguments += call.function.arguments or ""
            finish = chunk.choices[0].finish_reason or finish
        self.assertEqual((name, arguments, finish), (whole.function.name, whole.function.arguments, "tool_calls"))
        answer = chat(messages=self.ASK + [
            {"role": "assistant", "content": None, "tool_calls": [whole.model_dump()]},
            {"role": "tool", "tool_call_id": whole.id, "content": "18 degrees, sunny"}], tools=[self.WEATHER], max_tokens=24)
        self.assertTrue(answer.choices[0].message.content)


class Errors(unittest.TestCase):
    def check(self, status, param, call, **args):
        with self.assertRaises(status) as caught:
            call(**args)
        self.assertEqual(caught.exception.param, param, caught.exception)
        return caught.exception

    def test_bad_values(self):
        self.check(openai.BadRequestError, "top_p", chat, top_p=2)
        self.check(openai.BadRequestError, "n", chat, n=17)
        self.check(openai.BadRequestError, "messages", chat, messages=[])
        self.check(openai.NotFoundError, None, chat, model="gpt-17")
        error = self.check(openai.BadRequestError, "prompt", complete, prompt="word " * 20000)
        self.assertEqual(error.code, "context_length_exceeded")

    def test_what_is_not_there_says_so(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            chat(extra_body={"structured_outputs": {"structural_tag": "{}"}})
        self.assertIn("not supported", str(caught.exception))
        self.assertEqual(caught.exception.param, "structured_outputs.structural_tag")

    def test_a_schema_that_cannot_be_kept_says_where(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {
                "type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}}})
        self.assertIn("uniqueItems", str(caught.exception))

    def test_retries(self):
        before = metric(EMPTY_URL, "baton_http_client_retries_total")
        client = openai.OpenAI(base_url=EMPTY_URL + "/v1", api_key="none", max_retries=2)
        with self.assertRaises(openai.InternalServerError) as caught:
            client.completions.create(model=MODEL, prompt="a", max_tokens=1)
        self.assertEqual(caught.exception.status_code, 503)
        self.assertEqual(metric(EMPTY_URL, "baton_http_client_retries_total") - before, 2)


class Cancel(unittest.TestCase):
    def wait_until_idle(self):
        for _ in range(600):
            if metric(URL, "vllm:num_requests_running") == 0:
                return
            time.sleep(0.05)
        self.fail("a cancelled request still runs")

    def test_closing_a_stream(self):
        # It would go on to the end of the context.
        stream = chat(stream=True, max_tokens=2000, extra_body={"ignore_eos": True})
        next(iter(stream))
        self.assertGreaterEqual(metric(URL, "vllm:num_requests_running"), 1)
        stream.close()
        self.wait_until_idle()

    def test_cancelled_tasks_beside_others_that_end(self):
        async def run():
            async with openai.AsyncOpenAI(base_url=URL + "/v1", api_key="none", max_retries=0, timeout=120) as client:
                async def one(i):
                    stream = await client.chat.completions.create(
                        model=MODEL, messages=CHAT, max_tokens=4 if i % 2 else 2000, temperature=0, stream=True,
                        extra_body={"ignore_eos": True})
                    text = ""
                    async for chunk in stream:
                        text += chunk.choices[0].delta.content or ""
                    return text
                tasks = [asyncio.create_task(one(i)) for i in range(16)]
                texts = await asyncio.gather(*tasks[1::2])
                for task in tasks[::2]:
                    task.cancel()
                await asyncio.gather(*tasks[::2], return_exceptions=True)
                return texts
        texts = asyncio.run(run())
        self.assertEqual(len(set(texts)), 1, texts)
        self.wait_until_idle()


class Readme(unittest.TestCase):
    """The section "Use it with the OpenAI client": its commands, at this cluster's address."""

    def block(self, language):
        with open(os.environ["BATON_README"], encoding="utf-8") as file:
            text = file.read()
        section = text.split("## Use it with the OpenAI client", 1)[1].split("\n## ", 1)[0]
        return re.search(r"```%s\n(.*?)```" % language, section, re.S).group(1).replace("http://127.0.0.1:8000", URL)

    def test_python(self):
        out = subprocess.run([sys.executable, "-sBc", self.block("python")], capture_output=True, timeout=120)
        self.assertEqual(out.returncode, 0, out.stderr.decode())
        self.assertTrue(out.stdout.strip())

    def test_shell(self):
        out = subprocess.run(["bash", "-ec", self.block("sh")], capture_output=True, timeout=120)
        self.assertEqual(out.returncode, 0, out.stderr.decode())
        self.assertIn(b"choices", out.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
