// gRPC's own log lines, as lines of our log: bounded in number, because a peer can provoke one with every header that it
// damages, and without the values of headers.
#ifndef BATON_COMMON_RPC_GRPC_LOG_H_
#define BATON_COMMON_RPC_GRPC_LOG_H_

namespace baton::rpc {

// From each place in gRPC's sources at most this many lines a minute; the next one says how many were left out.
inline constexpr int kMaxGrpcLinesPerMinute = 5;

// For the whole process, from now on. Thread-safe; again does nothing.
void TakeGrpcLogs();

}  // namespace baton::rpc

#endif  // BATON_COMMON_RPC_GRPC_LOG_H_
