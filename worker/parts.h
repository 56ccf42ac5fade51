// What a worker process has whatever its role, handed to the role that it serves.
#ifndef BATON_WORKER_PARTS_H_
#define BATON_WORKER_PARTS_H_

#include "common/metrics.h"
#include "common/rpc/worker_host.h"
#include "common/vllm/engine_service.h"
#include "engine/engine_metrics.h"
#include "engine/runtime.h"
#include "kvtransfer/exporter.h"
#include "kvtransfer/receiver.h"
#include "kvtransfer/ticket.h"
#include "proto/config.pb.h"

namespace baton::worker {

// Nothing is owned; all outlives the role. Its methods read the host's identity, so they are for the host's owner only.
struct Parts {
  const v1::Config& config;
  rpc::WorkerHost* host;
  Metrics* metrics;
  engine::EngineMetrics* engine_metrics;
  engine::LoadedModel* model;
  kvtransfer::ClusterKey key;

  // Under the host's present identity.
  kvtransfer::Exporter::Options ExporterOptions() const;
  kvtransfer::ReceiverOptions ReceiverOptions() const;
  // All but kv_role, generate and load.
  vllm::EngineInfo VllmEngineInfo() const;
  // What a worker tells the router of its model and KV.
  v1::WorkerInfo Describe() const;
};

}  // namespace baton::worker

#endif  // BATON_WORKER_PARTS_H_
