// The OpenAPI 3.1 document of the HTTP door, served at /openapi.json.
#ifndef BATON_ROUTER_HTTP_OPENAPI_H_
#define BATON_ROUTER_HTTP_OPENAPI_H_

#include <string>

namespace baton::router::http {

std::string OpenApiDocument();

}  // namespace baton::router::http

#endif  // BATON_ROUTER_HTTP_OPENAPI_H_
