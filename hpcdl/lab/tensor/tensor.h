#pragma once
// Compares schemes of tensor parallelism on the same ranks: bytes between ranks, counted and as declared by the
// records, time and memory of a step.

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "hpcdl/core/pool.h"
#include "hpcdl/io/model_config.h"
#include "hpcdl/parallel/tensor.h"

namespace hpcdl::lab {

struct TensorOptions {
  std::int64_t batch = 4;
  int rounds = 3;  // measured steps of each scheme, after one that is not measured
  DType compute = DType::f32;
  Device device = {};  // of this rank
};

struct TensorResult {
  parallel::TensorParallel::Scheme scheme;
  double wire_bytes = 0, declared_bytes = 0;  // sent by each rank in a step; the mean over the ranks
  std::vector<double> steps;                  // seconds, of the slowest rank
  std::int64_t arena_bytes = 0;               // of a rank
  double loss = 0;                            // of the first step, per token: the same for all schemes
  double seconds() const;                     // median
};

struct TensorReport {
  io::ModelConfig model;
  TensorOptions options;
  int ranks = 1;
  std::int64_t parameters = 0;
  std::vector<TensorResult> results;
};

/// Collective over `tp`, on a CPU with ring algorithms. The schemes take turns.
TensorReport bench_tensor(const comm::Group& tp, Pool& pool, const io::ModelConfig& model,
                          const TensorOptions& options);

std::string tensor_table(const TensorReport& report);
nlohmann::ordered_json tensor_json(const TensorReport& report);

}  // namespace hpcdl::lab
