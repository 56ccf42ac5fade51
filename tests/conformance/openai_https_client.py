"""The openai client, unchanged, against a router that speaks HTTPS.

Environment: BATON_URL (https://localhost:port), BATON_CA (the authority's certificate, PEM).
"""
import os
import unittest

import openai

URL = os.environ["BATON_URL"]
CHAT = [{"role": "user", "content": "Name three colours."}]


def client(ca):
    """A client as anybody makes it; OpenSSL's own variable says whom the system trusts."""
    os.environ.pop("SSL_CERT_FILE", None)
    if ca:
        os.environ["SSL_CERT_FILE"] = ca
    return openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0, timeout=120)


class Https(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.client = client(os.environ["BATON_CA"])
        cls.model = cls.client.models.list().data[0].id

    def test_who_does_not_trust_the_authority_does_not_connect(self):
        with self.assertRaises(openai.APIConnectionError):
            client(None).models.list()

    def chat(self, **args):
        return self.client.chat.completions.create(
            **{"model": self.model, "messages": CHAT, "max_tokens": 16, "temperature": 0, **args})

    def test_a_stream_is_the_whole_answer(self):
        whole = self.chat()
        streamed = "".join(part.choices[0].delta.content or "" for part in self.chat(stream=True) if part.choices)
        self.assertEqual(streamed, whole.choices[0].message.content)
        self.assertGreater(whole.usage.completion_tokens, 0)

    def test_a_cancelled_stream_leaves_the_client_usable(self):
        stream = self.chat(stream=True, max_tokens=400, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        self.assertEqual(len(self.chat(n=2).choices), 2)

    def test_a_refusal_is_typed(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(temperature=-1)
        self.assertEqual(caught.exception.param, "temperature")

    def test_a_large_prompt(self):
        with self.assertRaises(openai.BadRequestError):
            self.chat(messages=[{"role": "user", "content": "a " * 100_000}])


if __name__ == "__main__":
    unittest.main()
