#include "hpcdl/train/run_log.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "hpcdl/io/atomic_file.h"

namespace hpcdl::train {

namespace {

constexpr std::pair<const char*, const char*> kTags[] = {{"loss", "loss_metrics/global_avg_loss"},
                                                         {"accuracy", "accuracy"},
                                                         {"epoch", "epoch"},
                                                         {"grad_norm", "grad_norm"},
                                                         {"lr", "lr"},
                                                         {"tokens_per_second", "throughput(tps)"},
                                                         {"samples_per_second", "throughput(samples/s)"},
                                                         {"sol_percent", "speed_of_light(%)"},
                                                         {"data_wait_percent", "time_metrics/data_loading(%)"},
                                                         {"comm_percent", "time_metrics/communication(%)"},
                                                         {"hidden_percent", "time_metrics/communication_hidden(%)"},
                                                         {"loss_scale", "loss_scale"},
                                                         {"skipped_steps", "skipped_steps"},
                                                         {"eval_loss", "validation_metrics/loss"},
                                                         {"eval_perplexity", "validation_metrics/perplexity"},
                                                         {"eval_accuracy", "validation_metrics/accuracy"}};

}  // namespace

void RunLog::open(const std::filesystem::path& folder, std::optional<std::int64_t> resumed_at) {
  metrics_.emplace(folder / kMetrics, resumed_at);
  io::make_folder(folder / "tensorboard");
  tensorboard_.emplace(folder / "tensorboard", resumed_at);
}

void RunLog::write(const io::Json& line, std::int64_t step) {
  if (!metrics_) return;
  metrics_->write(line);
  for (const auto& [key, tag] : kTags)
    if (const auto it = line.find(key); it != line.end()) tensorboard_->scalar(tag, it->get<float>(), step);
}

void RunLog::flush() {
  if (tensorboard_) tensorboard_->flush();
}

bool evaluated(const std::filesystem::path& folder, std::int64_t step) {
  std::istringstream lines(io::read_file(folder / RunLog::kMetrics));
  for (std::string line; std::getline(lines, line);) {
    const auto json = io::Json::parse(line, nullptr, false);
    if (json.is_object() && json.contains("eval_loss") && json.value("step", std::int64_t{-1}) == step) return true;
  }
  return false;
}

io::Json metrics_line(const StepNumbers& n, const Units& units, std::int64_t seen) {
  io::Json line = {{"step", n.step}, {"loss", n.loss}, {"lr", n.lr}, {units.name, seen}, {units.rate, n.per_second}};
  if (std::isfinite(n.grad_norm)) line["grad_norm"] = n.grad_norm;  // a step that was skipped has none
  if (n.epoch >= 0) line["epoch"] = n.epoch;
  if (n.accuracy >= 0) line["accuracy"] = n.accuracy;
  if (n.sol_percent >= 0) line["sol_percent"] = n.sol_percent;
  line["data_wait_percent"] = n.data_wait_percent;
  if (n.wire_bytes >= 0) line["wire_bytes"] = n.wire_bytes;
  if (n.comm_percent >= 0) line["comm_percent"] = n.comm_percent, line["hidden_percent"] = n.hidden_percent;
  if (n.host_bytes >= 0) line["host_bytes"] = n.host_bytes;
  if (n.disk_bytes >= 0) line["disk_bytes"] = n.disk_bytes, line["exposed_percent"] = n.exposed_percent;
  return line;
}

}  // namespace hpcdl::train
