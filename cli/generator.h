// The seam between commands that generate text and what generates it: a cluster (remote_generator.h) or a model in this
// process (local_generator.h). Both speak the events of the client API.
#ifndef BATON_CLI_GENERATOR_H_
#define BATON_CLI_GENERATOR_H_

#include <functional>

#include "absl/status/status.h"
#include "proto/inference.pb.h"

namespace baton::cli {

class Generator {
 public:
  virtual ~Generator() = default;

  // Blocks until the stream's end; `on_event` is called on this thread with Started, tokens, one ChoiceFinished each
  // and Summary. One call at a time. CANCELLED after Cancel.
  virtual absl::Status Generate(const v1::GenerateRequest& request,
                                const std::function<void(const v1::GenerateResponse&)>& on_event) = 0;

  // From any thread: ends the running Generate, if any. False when none runs.
  virtual bool Cancel() = 0;
};

}  // namespace baton::cli

#endif  // BATON_CLI_GENERATOR_H_
