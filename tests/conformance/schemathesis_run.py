"""schemathesis, unchanged: requests made from the router's own OpenAPI document, good and bad, at every path (BATON_URL).

BATON_EXAMPLES (15): fuzzed requests for each path, beside those that its coverage phase makes from the schemas. Its checks that
bad data is refused and good data accepted are left out: unknown fields are ignored, and a schema cannot say how long a
context is. The headers are those of the console's page; without them each button answers 403.
"""
import os
import subprocess
import sys

URL = os.environ["BATON_URL"]
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,unsupported_method"
sys.exit(subprocess.run(
    [sys.executable, "-B", "-m", "schemathesis.cli", "run", URL + "/openapi.json", "--checks", CHECKS, "--seed", "1",
     "--max-examples", os.environ.get("BATON_EXAMPLES", "15"), "--generation-database", "none", "--request-timeout", "60",
     "--no-color", "-H", "Origin: " + URL, "-H", "X-Baton-Console: 1"], check=False).returncode)
