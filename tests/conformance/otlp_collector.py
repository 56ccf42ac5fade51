"""A collector of traces: OTLP over HTTP, read with OpenTelemetry's own messages (package opentelemetry-proto).

Arguments: none, or certificate and key for HTTPS. Prints {"event": "ready", "http": "host:port"}. POST /v1/traces as the specification has it; GET /spans answers all spans so
far as JSON. Bytes that are not such a message, or spans that break the specification's rules for ids and times, are
answered 400 and listed under "errors".
"""
import http.server
import json
import ssl
import sys
import threading

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

SPANS, ERRORS = [], []
LOCK = threading.Lock()


def value_of(any_value):
    return getattr(any_value, any_value.WhichOneof("value"))


def attributes_of(attributes):
    return {a.key: value_of(a.value) for a in attributes}


def check(span):
    assert len(span.trace_id) == 16 and any(span.trace_id), "trace_id"
    assert len(span.span_id) == 8 and any(span.span_id), "span_id"
    assert len(span.parent_span_id) in (0, 8), "parent_span_id"
    assert span.name and 0 < span.start_time_unix_nano <= span.end_time_unix_nano, "name or times"


def take(body):
    request = trace_service_pb2.ExportTraceServiceRequest.FromString(body)
    spans = []
    for process in request.resource_spans:
        resource = attributes_of(process.resource.attributes)
        for scope in process.scope_spans:
            for span in scope.spans:
                check(span)
                spans.append({
                    "service": resource["service.name"],
                    "instance": resource["service.instance.id"],
                    "trace": span.trace_id.hex(),
                    "id": span.span_id.hex(),
                    "parent": span.parent_span_id.hex(),
                    "state": span.trace_state,
                    "name": span.name,
                    "kind": span.kind,
                    "start": span.start_time_unix_nano,
                    "end": span.end_time_unix_nano,
                    "error": span.status.code == 2,
                    "attributes": attributes_of(span.attributes),
                })
    return spans


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, code, content_type, body):
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        code = 200
        try:
            assert self.path == "/v1/traces", self.path
            assert self.headers["Content-Type"] == "application/x-protobuf", self.headers["Content-Type"]
            spans = take(body)
            with LOCK:
                SPANS.extend(spans)
        except Exception as error:  # told to the test
            code = 400
            with LOCK:
                ERRORS.append(repr(error))
        answer = trace_service_pb2.ExportTraceServiceResponse().SerializeToString()
        self.answer(code, "application/x-protobuf", answer)

    def do_GET(self):
        with LOCK:
            body = json.dumps({"spans": SPANS, "errors": ERRORS}).encode()
        self.answer(200, "application/json", body)

    def log_message(self, *args):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
if len(sys.argv) == 3:  # certificate and key: HTTPS
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(sys.argv[1], sys.argv[2])
    server.socket = tls.wrap_socket(server.socket, server_side=True)
print(json.dumps({"event": "ready", "http": "127.0.0.1:%d" % server.server_port}), flush=True)
server.serve_forever()
