#include "examples/demos/runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "examples/demos/tomls.h"
#include "hpcdl/comm/transport.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/units.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/file.h"
#include "hpcdl/io/json.h"
#include "hpcdl/machine/machine.h"
#include "hpcdl/train/run_table.h"
#include "tools/probe/parts.h"

namespace hpcdl::demos {

namespace {

double number(const io::Json& line, const char* key, double otherwise) {
  const auto it = line.find(key);
  return it != line.end() && it->is_number() ? it->get<double>() : otherwise;
}

/// The first quarter of the lines, at least one if there are two, is warm-up.
double median_after_warmup(const std::vector<StepLine>& steps, double StepLine::* value) {
  std::vector<double> values;
  for (std::size_t i = steps.size() > 1 ? std::max<std::size_t>(1, steps.size() / 4) : 0; i < steps.size(); ++i)
    values.push_back(steps[i].*value);
  require(!values.empty(), "demo", "the run has written no metrics");
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace

double Log::samples_per_second() const { return median_after_warmup(steps, &StepLine::samples_per_second); }
double Log::data_wait_percent() const { return median_after_warmup(steps, &StepLine::data_wait_percent); }
double Log::comm_percent() const { return median_after_warmup(steps, &StepLine::comm_percent); }
double Log::hidden_percent() const { return median_after_warmup(steps, &StepLine::hidden_percent); }

Log read_log(const std::filesystem::path& run) {
  const std::string text = io::read_file(run / "metrics.jsonl");
  Log log;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find('\n', at), text.size());
    const auto line = io::parse_json(text.substr(at, end - at), "metrics.jsonl");
    const double step = line.at("step");
    if (line.contains("eval_loss"))
      log.epochs.push_back({step, number(line, "epoch", 0), line["eval_loss"], number(line, "train_accuracy", 0),
                            number(line, "eval_accuracy", 0)});
    else
      log.steps.push_back({step, line.at("loss"), line.at("samples_per_second"), line.at("data_wait_percent"),
                           number(line, "comm_percent", -1), number(line, "hidden_percent", -1)});
    at = end + 1;
  }
  return log;
}

void configure(train::RunConfig& config, std::string_view demo, const Options& options,
               const std::vector<std::string>& smaller, const std::vector<std::string>& more) {
  io::ConfigTable table = train::table_of(config);
  table.apply_toml(toml(demo), fmt::format("{}.toml", demo));
  if (!device_from_name(options.device).is_cuda())
    for (const auto& word : smaller) table.apply_override(word);
  table.apply_override("train.device=" + options.device);
  if (!options.data.empty()) table.apply_override("data.images=" + options.data);
  if (options.epochs > 0 && config.train.epochs > 0)
    table.apply_override(fmt::format("train.epochs={}", options.epochs));
  if (options.quick) {
    for (const char* word : {"data.procedural=400", "data.workers=1", "model.channels=8", "train.batch=16",
                             "train.steps=8", "train.warmup=1", "train.log_every=1"})
      table.apply_override(word);
    if (config.train.epochs > 0) table.apply_override("train.epochs=2");
  }
  for (const auto& word : more) table.apply_override(word);
  config.checkpoint.resume = "none";  // a demo starts from the beginning
}

std::filesystem::path write_config(train::RunConfig& config, const std::filesystem::path& file) {
  io::make_folder(file.parent_path());
  io::write_file_atomic(file, train::table_of(config).to_toml());
  return file;
}

void require_whole(const train::RunSummary& run) {
  if (run.stopped) throw comm::Stopped("[demo] asked to stop before its runs had ended, so there is no report");
}

train::RunSummary train_here(train::RunConfig& config, const Console& console) {
  train::forget_run(config.output);
  const auto summary = train::run(config, {.console = console, .speed_of_light = {}, .after_step = {}});
  require_whole(summary);
  return summary;
}

Log train_on_ranks(train::RunConfig& config, int ranks, const Options& options) {
  train::forget_run(config.output);
  const auto file =
      write_config(config, config.output.parent_path() / fmt::format("{}.toml", config.output.filename().string()));
  options.hpcdl(
      {"launch", "-n", std::to_string(ranks), "--", "train", "-c", file.string(), "--out", config.output.string()});
  return read_log(config.output);
}

int most_ranks(const Options& options) {
  return device_from_name(options.device).is_cuda() ? cuda_devices()
                                                    : static_cast<int>(std::thread::hardware_concurrency());
}

std::vector<int> rank_counts(const Options& options) {
  const int least = device_from_name(options.device).is_cuda() ? 1 : 2;
  std::vector<int> counts{1};
  for (int n = 2; n <= std::clamp(most_ranks(options), least, 8); n *= 2) counts.push_back(n);
  return counts;
}

void say(const Options& options, const std::string& line) {
  if (options.console.line) options.console.line(line);
}

lab::Series series(std::string name, const std::vector<EpochLine>& epochs, double EpochLine::* value) {
  lab::Series s{.name = std::move(name), .points = {}};
  for (const auto& e : epochs) s.points.push_back({e.epoch, e.*value});
  return s;
}

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::vector<lab::Fact> machine_facts(const Options& options) {
  const auto machine = lab::this_machine();
  const auto device = device_from_name(options.device);
  return {{"device", device.is_cuda() ? fmt::format("{}, {} of {}", options.device,
                                                    lab::describe_gpu(device.index).name, cuda_devices())
                                      : options.device},
          {"cpu", machine.cpu},
          {"cores", fmt::format("{}", std::thread::hardware_concurrency())},
          {"instruction set", machine.isa},
          {"images", options.data.empty() ? "a procedural set with the shape of CIFAR-10" : options.data}};
}

}  // namespace hpcdl::demos
