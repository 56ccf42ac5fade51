"""tritonclient[grpc], unchanged, against a running router.

Environment: BATON_GRPC (host:port), BATON_URL (http://host:port, to compare answers with).
"""
import json
import os
import queue
import unittest
import urllib.request

import numpy
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

CLIENT = triton.InferenceServerClient(os.environ["BATON_GRPC"])
with urllib.request.urlopen(os.environ["BATON_URL"] + "/v1/models", timeout=60) as _models:
    MODEL = json.load(_models)["data"][0]["id"]


def tensor(name, value, datatype="BYTES"):
    array = numpy.array([value.encode()], dtype=object) if datatype == "BYTES" else numpy.array([value])
    result = triton.InferInput(name, [1], datatype)
    result.set_data_from_numpy(array)
    return result


def inputs(text, stream=None, **sampling):
    made = [tensor("text_input", text), tensor("sampling_parameters", json.dumps(sampling))]
    if stream is not None:
        made.append(tensor("stream", stream, "BOOL"))
    return made


def openai_text(text, **sampling):
    body = json.dumps({"prompt": text, **sampling}).encode()
    url = os.environ["BATON_URL"] + "/v1/completions"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)["choices"][0]["text"]


def text_of(result):
    array = result.as_numpy("text_output")
    return "" if array is None else array[0].decode()


class TritonClientTest(unittest.TestCase):
    def test_what_is_served(self):
        self.assertTrue(CLIENT.is_server_live())
        self.assertTrue(CLIENT.is_server_ready())
        self.assertTrue(CLIENT.is_model_ready(MODEL))
        self.assertTrue(CLIENT.is_model_ready(MODEL, "1"))
        self.assertFalse(CLIENT.is_model_ready("other"))
        self.assertEqual(CLIENT.get_server_metadata().name, "baton")
        self.assertEqual([i.name for i in CLIENT.get_model_metadata(MODEL).inputs][0], "text_input")
        config = CLIENT.get_model_config(MODEL).config
        self.assertTrue(config.model_transaction_policy.decoupled)
        self.assertEqual(config.input[0].data_type, 13)  # TYPE_STRING
        self.assertEqual(CLIENT.get_model_repository_index().models[0].state, "READY")

    def test_one_answer(self):
        prompt = "The capital of France is"
        result = CLIENT.infer(MODEL, inputs(prompt, max_tokens="12", temperature=0), request_id="one")
        self.assertEqual(text_of(result), prompt + openai_text(prompt, max_tokens=12, temperature=0))
        self.assertEqual(result.get_response().id, "one")

    def test_an_error_has_its_code(self):
        with self.assertRaises(InferenceServerException) as raised:
            CLIENT.infer(MODEL, inputs("x", top_p=7))
        self.assertEqual(raised.exception.status(), "StatusCode.INVALID_ARGUMENT")
        with self.assertRaises(InferenceServerException) as raised:
            CLIENT.infer("other", inputs("x"))
        self.assertEqual(raised.exception.status(), "StatusCode.NOT_FOUND")

    def stream(self, requests, count, **options):
        """Sends (id, inputs) on one stream; the (result, error) of each callback until `count` requests are final."""
        came = queue.Queue()
        CLIENT.start_stream(callback=lambda result, error: came.put((result, error)))
        try:
            for request_id, tensors in requests:
                CLIENT.async_stream_infer(MODEL, tensors, request_id=request_id, **options)
            answers = []
            while count > 0:
                result, error = came.get(timeout=60)
                answers.append((result, error))
                final = error is not None or result.get_response().parameters["triton_final_response"].bool_param
                count -= final
            return answers
        finally:
            CLIENT.stop_stream()

    def test_a_stream(self):
        prompt = "Once upon a time"
        for empty_final in (False, True):
            answers = self.stream([("s", inputs(prompt, True, max_tokens=16, temperature=0.9, seed=5))], 1,
                                  enable_empty_final_response=empty_final)
            self.assertTrue(all(error is None for _, error in answers))
            self.assertGreater(len(answers), 8)
            text = "".join(text_of(result) for result, _ in answers)
            self.assertEqual(text, openai_text(prompt, max_tokens=16, temperature=0.9, seed=5))

    def test_several_choices(self):
        prompt = "Once upon a time"
        sampling = dict(n=3, max_tokens=8, temperature=0.9, seed=5)
        whole = [t.decode() for t in CLIENT.infer(MODEL, inputs(prompt, **sampling)).as_numpy("text_output")]
        self.assertEqual(len(set(whole)), 3)
        joined = [prompt] * 3
        for result, error in self.stream([("n", inputs(prompt, True, **sampling))], 1):
            self.assertIsNone(error)
            for i, piece in enumerate(result.as_numpy("text_output")):
                joined[i] += piece.decode()
        self.assertEqual(joined, whole)

    def test_many_on_one_stream(self):
        prompts = {f"r{i}": f"Number {i} is" for i in range(6)}
        requests = [(i, inputs(p, True, max_tokens=8, temperature=0)) for i, p in prompts.items()]
        answers = self.stream(requests, len(requests))
        texts = dict.fromkeys(prompts, "")
        for result, error in answers:
            self.assertIsNone(error)
            texts[result.get_response().id] += text_of(result)
        for request_id, prompt in prompts.items():
            self.assertEqual(texts[request_id], openai_text(prompt, max_tokens=8, temperature=0))

    def test_an_error_leaves_the_stream_open(self):
        answers = self.stream([("bad", inputs("x", True, top_p=7)), ("good", inputs("x", True, max_tokens=2))], 2)
        errors = [error for _, error in answers if error is not None]
        self.assertEqual(len(errors), 1)
        self.assertIn("top_p", str(errors[0]))
        self.assertTrue(any(result is not None for result, _ in answers))


if __name__ == "__main__":
    unittest.main(verbosity=2)
