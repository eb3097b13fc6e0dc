// The records of a training step as rows of a roofline.

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "hpcdl/core/error.h"
#include "hpcdl/train/synthetic_run.h"
#include "hpcdl/train/trainer.h"
#include "tools/compare/statistics.h"
#include "tools/profile/timer.h"
#include "tools/roofline/rows.h"

namespace hpcdl::lab::roofline {

namespace {

/// The shapes of the first two matrices that a record reads; of its first operands if it reads none.
std::string operand_shapes(const Program& p, const Record& r) {
  std::vector<std::string> words;
  const auto add = [&](const Operand& o) { words.push_back(fmt::format("{}", fmt::join(o.spec.shape, "x"))); };
  for (std::uint32_t i = 0; i < r.operand_count && words.size() < 2; ++i)
    if (const auto& o = p.operands[r.operands + i]; o.slot >= 0 && o.access == Access::read && o.spec.shape.rank() >= 2)
      add(o);
  for (std::uint32_t i = 0; i < r.operand_count && words.empty(); ++i)
    if (const auto& o = p.operands[r.operands + i]; o.slot >= 0) add(o);
  return fmt::format("{}", fmt::join(words, " "));
}

Row row_of_record(const Program& p, const Record& r, const Roofs& roofs) {
  Row row;
  row.source = "step";
  row.op = r.op;
  row.pass = phase_name(r.phase);
  row.scope = folded_scope(p.scopes[r.scope]);  // the layers of a model are alike
  row.shape = operand_shapes(p, r);
  row.cost = r.cost;
  row.parts = {r.cost};
  row.dtype = unit_name(r.cost.unit);
  relight(row, roofs);
  return row;
}

/// Median seconds of every record over `runs` runs of a program.
std::vector<double> record_seconds(RecordTimer& timer, const Instance& exe, Stream& stream, int runs) {
  constexpr int kMoreTries = 3;  // a timer may need several attempts
  std::vector<std::vector<double>> samples(exe.program().records.size());
  timer.prepare(exe, stream);
  int done = 0;
  for (int tries = 0; done < runs && tries < runs + kMoreTries; ++tries) {
    StepTrace trace;
    timer.begin();
    const auto& times = trace.runs.emplace_back().times;
    timer.run(exe, stream, trace.runs.back());
    if (!timer.finish(trace)) continue;
    ++done;
    for (std::size_t i = 0; i < samples.size(); ++i)
      samples[i].push_back(1e-9 * static_cast<double>(times[i].end - times[i].begin));
  }
  require(done > 0, "roofline", "the records of a program could not be timed: {}", timer.how());
  std::vector<double> medians;
  for (auto& s : samples) medians.push_back(compare::median(std::move(s)));
  return medians;
}

/// Combines equal records: the mean of their medians, and their extremes.
class Groups {
 public:
  void add(Row row, double seconds, std::int64_t times, int runs) {
    const auto key =
        fmt::format("{}|{}|{}|{}|{}|{}", row.op, row.pass, row.scope, row.shape, row.cost.operations, row.cost.bytes());
    const auto [it, fresh] = index_.try_emplace(key, rows_.size());
    if (fresh) rows_.push_back(std::move(row)), rows_.back().count = 0, rows_.back().fastest = seconds;
    Row& r = rows_[it->second];
    r.seconds = (r.seconds * static_cast<double>(r.count) + seconds * static_cast<double>(times)) /
                static_cast<double>(r.count + times);
    r.fastest = std::min(r.fastest, seconds), r.slowest = std::max(r.slowest, seconds);
    r.count += times, r.runs = runs;
  }
  std::vector<Row> take() {
    std::stable_sort(rows_.begin(), rows_.end(), [](const Row& a, const Row& b) {
      const auto weight = [](const Row& r) {
        return static_cast<double>(r.count) * (r.measured() ? r.seconds : r.light.seconds);
      };
      return weight(a) > weight(b);
    });
    return std::move(rows_);
  }

 private:
  std::map<std::string, std::size_t> index_;
  std::vector<Row> rows_;
};

}  // namespace

std::vector<Row> step_rows(train::RunConfig& config, Pool& pool, const Roofs& roofs, const Timing& timing,
                           bool measured, const OnProgress& progress) {
  if (progress) progress("making the model", 0);
  const auto model = train::model_without_data(config, config.train.seed);
  const Device device = device_from_name(config.train.device);
  train::TrainStep step(*model, pool, train::step_options(config), device);
  const train::DrawnBatch batch(config, step.inputs());
  StepParams params{
      .seed = 1, .lr = 0, .grad_scale = 1.0f / static_cast<float>(batch.targets)};  // lr 0 keeps the weights
  Stream stream(device, pool, &params);
  const auto timer = record_timer(device);
  Groups groups;
  const auto micro_batches = config.train.accumulate;
  const auto programs = step.programs(std::min<std::int64_t>(micro_batches, 2));
  for (std::size_t i = 0; i < programs.size(); ++i) {
    const bool update = i + 1 == programs.size();
    const auto& program = programs[i]->program();
    if (progress)
      progress(update ? "the update" : "forward and backward",
               static_cast<double>(i) / static_cast<double>(programs.size()));
    std::vector<double> seconds(program.records.size());
    if (measured) {
      // Passes in the batch and warms up; on a GPU programs are captured here.
      if (!update) step.accumulate(batch.views(), 0, static_cast<std::int64_t>(i));
      else if (device.is_cuda()) step.update(0, batch.targets);
      seconds = record_seconds(*timer, *programs[i], stream, timing.step_runs);
    }
    const auto times = update || i == 0 ? 1 : micro_batches - 1;
    for (std::size_t k = 0; k < seconds.size(); ++k)
      if (!measured || seconds[k] > 0)
        groups.add(row_of_record(program, program.records[k], roofs), seconds[k], times,
                   measured ? timing.step_runs : 0);
  }
  return groups.take();
}

}  // namespace hpcdl::lab::roofline
