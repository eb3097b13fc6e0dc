#pragma once
// Training steps on several ranks, in variants that take turns in one run: ways to exchange gradients, compared with
// each other and with a step of the same size without exchange; schemes of tensor parallelism, by time, memory, and the
// bytes between ranks, counted and as declared by the records.

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "hpcdl/io/model_config.h"
#include "hpcdl/ops/wire_codes/wire_codes.h"
#include "hpcdl/parallel/tensor.h"
#include "hpcdl/pool.h"

namespace hpcdl::lab {

/// One way to share a step among the ranks.
struct StepVariant {
  std::string name;
  double bucket_mb = 0;  // of gradients; 0: every tensor separately
  bool overlap = true;
  bool exchange = true;                                           // false: ranks exchange nothing
  std::optional<parallel::TensorParallel::Scheme> scheme = {};    // the ranks share the layers instead of the batch
  int zero = 0;                                                   // what the ranks divide among themselves
  WireCode weights = WireCode::none, gradients = WireCode::none;  // as which these travel
  bool copies = false;                                            // products read 16-bit copies, which travel
  bool span_of_host = false;                                      // only ranks of a host divide anything
};

/// Buckets of the given sizes, waiting for every tensor separately ("blocking"), and first no exchange ("compute").
std::vector<StepVariant> ddp_variants(const std::vector<double>& bucket_mb);
/// On a CPU with ring algorithms.
std::vector<StepVariant> tensor_variants();
/// Stages of dividing the state of the training, in buckets or units of the default size.
std::vector<StepVariant> zero_variants(const std::vector<int>& stages);
/// Stage 3 with what is sent as 16 bits, and with fewer bytes, in products of bf16.
std::vector<StepVariant> wire_variants();

struct StepsOptions {
  std::int64_t batch = 4;  // of a rank, or of all ranks where they share the layers
  int rounds = 3;          // measured steps of each variant, after one that is not measured
  double first_mb = 1;     // the first bucket
  DType compute = DType::f32;
  Device device = {};  // of this rank
};

struct StepsResult {
  StepVariant variant;
  int buckets = 0;
  std::vector<double> steps;  // seconds, of the slowest rank
  // In a step, the mean over the ranks:
  double comm_seconds = 0;                    // reductions of gradients under way
  double waited_seconds = 0;                  // part of that time in which nothing was computed
  double wire_bytes = 0, declared_bytes = 0;  // sent by a rank
  std::int64_t arena_bytes = 0;               // of a rank
  std::int64_t state_bytes = 0;               // of a rank: weights, gradients and moments between two steps
  double loss = 0;                            // of the first step, per token: the same for all schemes
  double seconds() const;                     // median
  double hidden() const { return comm_seconds > 0 ? std::max(0.0, 1 - waited_seconds / comm_seconds) : 0; }
};

struct StepsReport {
  io::ModelConfig model;
  StepsOptions options;
  int ranks = 1, hosts = 1, threads = 1;
  std::string transport;
  std::int64_t parameters = 0, tokens = 0;  // tokens: of all ranks in one step
  std::vector<StepsResult> results;         // as the variants
  const StepsResult* find(std::string_view name) const;
};

/// Collective. `tell` is called before each step on every rank.
StepsReport bench_steps(const comm::Group& world, Pool& pool, const io::ModelConfig& model,
                        const std::vector<StepVariant>& variants, const StepsOptions& options,
                        const std::function<void(const std::string&)>& tell = {});

std::string ddp_table(const StepsReport& report);
nlohmann::ordered_json ddp_json(const StepsReport& report);
/// Step times as bars, with the hidden part of the exchange.
std::string ddp_picture(const StepsReport& report, const std::string& title);

std::string tensor_table(const StepsReport& report);
nlohmann::ordered_json tensor_json(const StepsReport& report);

/// Ratios to the first stage.
std::string zero_table(const StepsReport& report);
nlohmann::ordered_json zero_json(const StepsReport& report);

}  // namespace hpcdl::lab
