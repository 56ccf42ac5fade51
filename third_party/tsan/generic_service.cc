// gRPC's handler of generic services is a template that its library has made for itself, without the sanitizer. Made here as
// well, it is instrumented like every other handler, and the dynamic linker takes this one.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/support/server_callback.h>

template class grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>;
