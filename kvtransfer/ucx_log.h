// Where UCX's own words go.
#ifndef BATON_KVTRANSFER_UCX_LOG_H_
#define BATON_KVTRANSFER_UCX_LOG_H_

namespace baton::kvtransfer {

// UCX logs to standard output, which is for data: from here on its errors and warnings go to stderr. Once for a process, by
// whoever calls UCX first. Thread-safe.
void SendUcxLogToStderr();

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_UCX_LOG_H_
