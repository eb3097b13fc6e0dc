#pragma once
// What a run trains: a model and the data that it learns from. The loop of a run (loop.cpp) handles checkpoints,
// metrics, signals and ranks.

#include <array>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hpcdl/io/json.h"
#include "hpcdl/models/adapter_files.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/train/config.h"
#include "hpcdl/train/data_source.h"
#include "hpcdl/train/progress.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {

/// Which samples the micro-batches of the last two steps contained.
class Samples {
 public:
  void note(std::int64_t step, std::int64_t micro, std::span<const std::int64_t> samples) {
    auto& list = of(step);
    if (micro == std::ssize(list)) list.emplace_back();
    list[static_cast<std::size_t>(micro)].assign(samples.begin(), samples.end());
  }
  /// The samples in `rows`; no rows: all.
  std::vector<std::int64_t> in(std::int64_t step, std::int64_t micro, std::span<const std::int64_t> rows) const {
    const auto& all = steps_[static_cast<std::size_t>(step % 2)].at(static_cast<std::size_t>(micro));
    if (rows.empty()) return all;
    std::vector<std::int64_t> list;
    for (const auto row : rows) list.push_back(all.at(static_cast<std::size_t>(row)));
    return list;
  }

 private:
  std::vector<std::vector<std::int64_t>>& of(std::int64_t step) { return steps_[static_cast<std::size_t>(step % 2)]; }
  std::array<std::vector<std::vector<std::int64_t>>, 2> steps_;  // by micro-batch
};

/// Sums over batches, of one rank or of all ranks.
struct Score {
  double loss = 0, correct = 0;
  std::int64_t counted = 0;  // targets
  double mean() const { return loss / static_cast<double>(counted); }
  double accuracy() const { return counted > 0 ? correct / static_cast<double>(counted) : 0; }
  Score& operator+=(const Score& o) {
    loss += o.loss, correct += o.correct, counted += o.counted;
    return *this;
  }
  /// The results of an evaluation, as metrics and in words.
  io::Json metrics(const Units& units) const;
  std::string words(const Units& units) const;
};

class Task {
 public:
  /// Makes the task that `config` describes, and completes its [model]. Collective over the ranks of the mesh; reads
  /// and prepares the data. Throws parallel::Disagreement if ranks have found different data or models.
  /// `config` and `mesh` must outlive it.
  Task(RunConfig& config, const parallel::Mesh& mesh, Pool& pool, const Console& console);

  DataSource& data() { return *data_; }
  const DataSource& data() const { return *data_; }
  Units units() const { return data_->units(); }

  /// The model with its first weights, see make_run_model(); without a seed it is only described.
  std::unique_ptr<models::Trainable> make_model(std::optional<std::uint64_t> seed) const;
  /// Fetches the next micro-batch of this rank.
  void next() { batch_ = data_->next(); }
  /// Runs forward and backward for it; returns the number of targets that count.
  std::int64_t accumulate(TrainStep& step, std::int64_t number, std::int64_t micro, bool last);
  /// Says which samples were in these rows of a micro-batch of step `number`, which is the last step or the one before;
  /// no rows: in all rows.
  std::string describe_samples(std::int64_t number, std::int64_t micro, std::span<const std::int64_t> rows) const;
  /// Sums over the evaluation batches of this rank: at most `batches`, and only as long as `goes_on` returns true
  /// before each; empty if there are none.
  std::optional<Score> evaluate(TrainStep& step, std::int64_t batches, const std::function<bool()>& goes_on);
  /// Throws UsageError unless a checkpoint belongs to the model and the data of this run.
  void check_resumes(const std::filesystem::path& folder) const;
  /// Writes the files of a model folder other than the weights.
  void save_beside(const std::filesystem::path& folder) const;
  /// Writes the model in the format that other programs read, as of the last fetch() of the step. Collective over the
  /// mesh.
  void save_model(const models::Trainable& model, const std::filesystem::path& folder) const;

 private:
  RunConfig& config_;
  const parallel::Mesh& mesh_;
  std::unique_ptr<DataSource> data_;
  std::optional<models::AdapterBase> base_;  // of a run that trains an adapter
  Batch batch_;
  Samples samples_;
};

}  // namespace hpcdl::train
