"""langchain-openai, unchanged, against a running router (BATON_URL).

What it needs to know: ChatOpenAI counts a stream's tokens with stream_usage=True, which is its default only for OpenAI's
own address. OpenAI (completions) sends best_of 1.
"""
import asyncio
import json
import unittest

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI

import router_counts

ARGUMENTS = {"base_url": router_counts.URL + "/v1", "api_key": "none", "model": router_counts.MODEL, "max_retries": 0}


def chat(**more):
    return ChatOpenAI(**ARGUMENTS, **{"temperature": 0, "max_tokens": 12, "stream_usage": True, **more})


class LangchainTest(unittest.TestCase):
    def setUp(self):
        self.counts = router_counts.Counts()

    def check(self, usages, choices=None):
        """The sums that the client saw are those that the router counted, and nothing was refused."""
        taken = self.counts.take()
        self.assertEqual(taken, {"prompt": sum(u["input_tokens"] for u in usages),
                                 "generated": sum(u["output_tokens"] for u in usages),
                                 "choices": choices or len(usages), "refused": 0})
        self.assertGreater(taken["generated"], 0)

    def test_invoke_stream_batch_and_async_are_one_answer(self):
        messages = [SystemMessage("Be brief."), HumanMessage("Name a colour.")]
        whole = chat().invoke(messages)
        self.assertEqual(whole.response_metadata["model_name"], router_counts.MODEL)
        parts = list(chat().stream(messages))
        streamed = parts[0]
        for part in parts[1:]:
            streamed += part
        self.assertGreater(len(parts), 3)
        self.assertEqual(streamed.content, whole.content)
        for key in ("input_tokens", "output_tokens", "total_tokens"):
            self.assertEqual(streamed.usage_metadata[key], whole.usage_metadata[key])
        self.assertGreater(streamed.usage_metadata["input_token_details"]["cache_read"], 0)  # the same prompt again
        batch = chat().batch([messages] * 4)
        later = asyncio.run(chat().ainvoke(messages))
        for one in batch + [later]:
            self.assertEqual(one.content, whole.content)
        self.check([whole.usage_metadata, streamed.usage_metadata, later.usage_metadata] + [b.usage_metadata for b in batch])

    def test_a_conversation_with_tools_in_it(self):
        call = {"name": "add", "args": {"a": 1, "b": 2}, "id": "call_1", "type": "tool_call"}
        answer = chat().invoke([HumanMessage("1 + 2?"), AIMessage("", tool_calls=[call]),
                                ToolMessage("3", tool_call_id="call_1"), HumanMessage("So?")])
        self.check([answer.usage_metadata])

    def test_structured_output(self):
        schema = {"title": "City", "type": "object", "additionalProperties": False, "required": ["name", "big"],
                  "properties": {"name": {"type": "string", "maxLength": 12}, "big": {"type": "boolean"}}}
        asked = chat(max_tokens=80).with_structured_output(schema, method="json_schema", include_raw=True)
        answer = asked.invoke("Paris?")
        self.assertIsNone(answer["parsing_error"])
        self.assertEqual(set(answer["parsed"]), {"name", "big"})
        answers = [answer["raw"].usage_metadata]
        raw = chat(max_tokens=60, model_kwargs={"response_format": {"type": "json_object"}}).invoke("Paris, as JSON?")
        self.assertTrue(raw.response_metadata["finish_reason"] == "length" or isinstance(json.loads(raw.content), dict))
        called = chat(max_tokens=96).with_structured_output(schema, method="function_calling", include_raw=True).invoke("Paris?")
        self.assertIsNone(called["parsing_error"])
        self.assertEqual(set(called["parsed"]), {"name", "big"})
        self.check(answers + [raw.usage_metadata, called["raw"].usage_metadata])

    def test_logprobs_n_stop_and_seed(self):
        answer = chat(logprobs=True, top_logprobs=3).invoke("Hello")
        tokens = answer.response_metadata["logprobs"]["content"]
        self.assertEqual(len(tokens), answer.usage_metadata["output_tokens"])
        self.assertEqual(len(tokens[0]["top_logprobs"]), 3)
        several = chat(n=3, temperature=0.9, seed=5).generate([[HumanMessage("Hello")]])
        self.assertEqual(len(several.generations[0]), 3)
        total = several.llm_output["token_usage"]
        stopped = chat(max_tokens=60).invoke("Count from 1 to 9.", stop=["3"])
        self.assertNotIn("3", stopped.content)
        self.check([answer.usage_metadata, stopped.usage_metadata,
                    {"input_tokens": total["prompt_tokens"], "output_tokens": total["completion_tokens"]}], choices=5)

    def test_completions(self):
        llm = OpenAI(**ARGUMENTS, temperature=0, max_tokens=8)
        result = llm.generate(["The capital of France is", "1, 2, 3,"])
        usage = result.llm_output["token_usage"]
        self.assertEqual("".join(llm.stream("1, 2, 3,")), result.generations[1][0].text)
        taken = self.counts.take()
        self.assertEqual(taken["refused"], 0)
        last = router_counts.tokens_of("1, 2, 3,")
        self.assertEqual((taken["prompt"], taken["generated"]), (usage["prompt_tokens"] + last, usage["completion_tokens"] + 8))


if __name__ == "__main__":
    unittest.main(verbosity=2)
