#include "worker/parts.h"

#include "absl/strings/str_cat.h"

namespace baton::worker {

kvtransfer::Exporter::Options Parts::ExporterOptions() const {
  kvtransfer::Exporter::Options options = {.worker_name = host->name(),
                                           .incarnation = host->incarnation(),
                                           .key = key,
                                           .layout = model->kv_layout(),
                                           .fingerprint = model->fingerprint(),
                                           .reap_interval = absl::Milliseconds(100),
                                           .block_tags = config.kv_block_tags()};
  if (model->transfer_device() != nullptr) {
    options.copy_to_host = [engine = model->engine()](kvcache::BlockLease blocks, std::function<void()> done) {
      engine->CopyToHost(std::move(blocks), std::move(done));
    };
  }
  return options;
}

kvtransfer::ReceiverOptions Parts::ReceiverOptions() const {
  return {.key = key,
          .layout = model->kv_layout(),
          .fingerprint = model->fingerprint(),
          .consumer = host->incarnation(),
          .require_tags = config.kv_block_tags()};
}

vllm::EngineInfo Parts::VllmEngineInfo() const {
  vllm::EngineInfo info;
  info.engine_id = absl::StrCat(host->name(), "-", host->incarnation());
  info.limits = model->limits();
  info.architecture = model->architecture();
  info.eos_token_ids = model->eos_token_ids();
  info.block_size = static_cast<uint32_t>(model->kv_layout().block_size);
  info.max_sequences = config.max_sequences();
  info.default_deadline = absl::Milliseconds(config.default_deadline_ms());
  info.serving = [host = host] { return !host->draining(); };
  return info;
}

v1::WorkerInfo Parts::Describe() const {
  v1::WorkerInfo info = model->Describe();
  *info.mutable_layout() = kvtransfer::LayoutToProto(model->kv_layout());
  return info;
}

}  // namespace baton::worker
