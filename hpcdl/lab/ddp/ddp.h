#pragma once
// The cost of exchanging gradients in a training step: compares bucket sizes with each other, with waiting for each
// tensor separately, and with a step of the same size without exchange. All take turns in one run on the same ranks.

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "hpcdl/comm/group.h"
#include "hpcdl/core/pool.h"
#include "hpcdl/io/model_config.h"

namespace hpcdl::lab {

/// One way to exchange gradients.
struct DdpForm {
  std::string name;
  double bucket_mb = 0;  // 0: every tensor separately
  bool overlap = true;
  bool exchange = true;  // false: ranks exchange nothing
};

struct DdpOptions {
  std::int64_t batch = 4;  // of a rank
  int rounds = 3;          // measured steps of each form, after one that is not measured
  double first_mb = 1;
};

struct DdpResult {
  DdpForm form;
  int buckets = 0;
  std::vector<double> steps;  // seconds, of the slowest rank
  double comm_seconds = 0;    // per step, mean over the ranks: reductions in flight
  double waited_seconds = 0;  // part of that time in which nothing was computed
  double seconds() const;     // median
  double hidden() const { return comm_seconds > 0 ? std::max(0.0, 1 - waited_seconds / comm_seconds) : 0; }
};

struct DdpReport {
  io::ModelConfig model;
  DdpOptions options;
  int ranks = 1, hosts = 1, threads = 1;
  std::string transport;
  std::int64_t parameters = 0, tokens = 0;  // tokens: of all ranks in one step
  std::vector<DdpResult> results;           // results[0]: without exchange
  const DdpResult* find(std::string_view name) const;
};

/// Forms: buckets of the given sizes, waiting for every tensor separately ("blocking"), and no exchange ("compute").
std::vector<DdpForm> ddp_forms(const std::vector<double>& bucket_mb);
/// Collective. `tell` is called before each step on every rank.
DdpReport bench_ddp(const comm::Group& world, Pool& pool, const io::ModelConfig& model,
                    const std::vector<DdpForm>& forms, const DdpOptions& options,
                    const std::function<void(const std::string&)>& tell = {});

/// Formats with three significant digits.
std::string ddp_duration(double seconds);
std::string ddp_table(const DdpReport& report);
nlohmann::ordered_json ddp_json(const DdpReport& report);
/// Step times as bars, with the hidden part of the exchange.
std::string ddp_picture(const DdpReport& report, const std::string& title);

}  // namespace hpcdl::lab
