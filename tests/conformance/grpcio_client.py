"""grpcio's clients of health (also Watch), reflection and rich status, unchanged, against a running router (BATON_GRPC)."""
import os
import unittest

import grpc
from google.protobuf import descriptor_pool, message_factory
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_status import rpc_status

CHANNEL = grpc.insecure_channel(os.environ["BATON_GRPC"])
SERVICES = {"baton.v1.Inference", "baton.v1.Cluster", "inference.GRPCInferenceService"}
SERVING = health_pb2.HealthCheckResponse.SERVING


def reflected(name):
    """A message class that only the server told of."""
    pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(CHANNEL))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


class GrpcioTest(unittest.TestCase):
    def test_health(self):
        stub = health_pb2_grpc.HealthStub(CHANNEL)
        for service in {"", "baton.v1.Inference", "inference.GRPCInferenceService"}:
            self.assertEqual(stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=20).status, SERVING)
            watch = stub.Watch(health_pb2.HealthCheckRequest(service=service), timeout=20)
            self.assertEqual(next(watch).status, SERVING)
            watch.cancel()
        with self.assertRaises(grpc.RpcError) as caught:
            stub.Check(health_pb2.HealthCheckRequest(service="none"), timeout=20)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_reflection_is_enough_to_call(self):
        self.assertLessEqual(SERVICES, set(ProtoReflectionDescriptorDatabase(CHANNEL).get_services()))
        request, response = reflected("baton.v1.TokenizeRequest"), reflected("baton.v1.TokenizeResponse")
        call = CHANNEL.unary_unary("/baton.v1.Inference/Tokenize", request.SerializeToString, response.FromString)
        self.assertGreater(len(call(request(text="hello world"), timeout=20).token_ids), 1)

    def test_rich_status(self):
        request, response = reflected("baton.v1.GenerateRequest"), reflected("baton.v1.GenerateResponse")
        call = CHANNEL.unary_stream("/baton.v1.Inference/Generate", request.SerializeToString, response.FromString)

        def error_of(code, detail, **fields):
            with self.assertRaises(grpc.RpcError) as caught:
                list(call(request(prompt="x", **fields), timeout=20))
            status = rpc_status.from_call(caught.exception)
            self.assertEqual(status.code, code.value[0])
            self.assertTrue(status.details[0].Unpack(detail))
            return detail

        bad = error_of(grpc.StatusCode.INVALID_ARGUMENT, error_details_pb2.BadRequest(), sampling={"max_tokens": -1})
        self.assertEqual(bad.field_violations[0].field, "sampling.max_tokens")
        info = error_of(grpc.StatusCode.NOT_FOUND, error_details_pb2.ErrorInfo(), model="other")
        self.assertEqual((info.reason, info.domain), ("MODEL_NOT_FOUND", "baton"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
