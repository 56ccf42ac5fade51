"""The kserve client (InferenceGRPCClient), unchanged, against a running router.

Environment: BATON_GRPC (host:port), BATON_URL. What it needs to know: it speaks unary ModelInfer only, and its REST half speaks
v2 over HTTP, which this router does not serve; BYTES outputs come as lists of bytes when they are raw.
"""
import asyncio
import json
import os
import unittest

import grpc
import numpy
from kserve import InferenceGRPCClient, InferInput, InferRequest

import router_counts


def request(text, **sampling):
    inputs = []
    for name, value in (("text_input", text), ("sampling_parameters", json.dumps(sampling))):
        tensor = InferInput(name, [1], "BYTES")
        tensor.set_data_from_numpy(numpy.array([value.encode()], dtype=object))
        inputs.append(tensor)
    return InferRequest(model_name=router_counts.MODEL, infer_inputs=inputs)


class KserveTest(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.client = InferenceGRPCClient(os.environ["BATON_GRPC"])

    async def asyncTearDown(self):
        await self.client.close()

    async def test_health(self):
        self.assertTrue(await self.client.is_server_live())
        self.assertTrue(await self.client.is_server_ready())
        self.assertTrue(await self.client.is_model_ready(router_counts.MODEL))
        self.assertFalse(await self.client.is_model_ready("other"))

    async def test_many_at_once_are_counted_and_equal(self):
        counts = router_counts.Counts()
        texts = ["The capital of France is", "1, 2, 3,", "Once upon a time"] * 4
        sampling = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
        answers = await asyncio.gather(*(self.client.infer(request(text, **sampling)) for text in texts))
        said = []
        for text, answer in zip(texts, answers):
            output = answer.get_output_by_name("text_output").as_numpy()[0]
            output = output.decode() if isinstance(output, bytes) else output
            self.assertTrue(output.startswith(text))  # its input, as Triton's vLLM backend does
            said.append(output)
        self.assertEqual(said[:3] * 4, said)
        self.assertEqual(counts.take(), {"prompt": sum(map(router_counts.tokens_of, texts)), "generated": 8 * len(texts),
                                         "choices": len(texts), "refused": 0})

    async def test_errors_have_their_codes(self):
        with self.assertRaises(grpc.RpcError) as caught:
            await self.client.infer(request("x", max_tokens=-1))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("max_tokens", caught.exception.details())


if __name__ == "__main__":
    unittest.main(verbosity=2)
