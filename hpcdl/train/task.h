#pragma once
// What a run trains: a model, the data that it learns from, and the names of its results. The run's loop (trainer.cpp)
// handles checkpoints, metrics, signals and ranks; a task handles tokens or images.

#include <array>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hpcdl/data/split_data.h"
#include "hpcdl/io/json.h"
#include "hpcdl/parallel/agreement.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/train/config.h"
#include "hpcdl/train/progress.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::train {

/// The unit in which the samples of a run are counted.
struct Units {
  const char* name;      // key of metrics: "tokens"
  const char* rate;      // "tokens_per_second"
  const char* brief;     // after a rate on the progress line: "tok/s"
  std::int64_t in_row;   // number in a row of a batch
  bool classes = false;  // targets are classes, and right answers are counted
};

/// Which samples the micro-batches of the last two steps held.
class Samples {
 public:
  void note(std::int64_t step, std::int64_t micro, std::span<const std::int64_t> samples) {
    auto& list = of(step);
    if (micro == std::ssize(list)) list.emplace_back();
    list[static_cast<std::size_t>(micro)].assign(samples.begin(), samples.end());
  }
  /// Those in `rows`; no rows: all.
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

/// Sums over batches; of one rank, or of all.
struct Score {
  double loss = 0, correct = 0;
  std::int64_t counted = 0;  // targets
  double mean() const { return loss / static_cast<double>(counted); }
  double accuracy() const { return counted > 0 ? correct / static_cast<double>(counted) : 0; }
  Score& operator+=(const Score& o) {
    loss += o.loss, correct += o.correct, counted += o.counted;
    return *this;
  }
};

class Task {
 public:
  virtual ~Task() = default;

  virtual Units units() const = 0;
  /// A description of the training data, in words.
  virtual std::string describe_data() const = 0;
  /// What identifies the data, the tokenizer and the classes: the same on all ranks.
  virtual std::vector<parallel::Fact> facts() const = 0;
  /// Rows of an epoch, over all ranks.
  virtual std::int64_t rows() const = 0;

  /// The model with its first weights; without a seed it is only described.
  virtual std::unique_ptr<models::Trainable> make_model(std::optional<std::uint64_t> seed) const = 0;
  /// Bytes of batches that are fetched ahead, of `batch` samples each.
  virtual std::int64_t bytes_ahead(std::int64_t batch) const = 0;
  /// Bytes of host memory that its data takes in the course of the run.
  virtual std::int64_t bytes_of_data() const { return 0; }

  /// Bytes of the files that stay mapped in the course of the run: addresses, not memory.
  virtual std::int64_t bytes_mapped() const { return 0; }

  /// Throws UsageError unless the model in `folder` is the one that this run trains.
  virtual void check_resumes(const std::filesystem::path& folder) const = 0;
  /// Opens the training data at a sample, and what evaluation reads if `evaluates`; before the first next(). `compute`:
  /// where steps are queued.
  virtual void open_data(const data::LoaderState& start, bool evaluates, const Stream& compute) = 0;
  /// Fetches the next micro-batch of this rank.
  virtual void next() = 0;
  /// Runs forward and backward of it; returns the number of targets that count.
  virtual std::int64_t accumulate(TrainStep& step, std::int64_t number, std::int64_t micro, bool last) = 0;
  /// Where the batch after the last one fetched begins.
  virtual data::LoaderState position() const = 0;
  /// Seconds for which training waited for data: the time of the thread that calls next(), or that of the GPU.
  virtual double waited_seconds() const = 0;
  /// Says which samples were in these rows of a micro-batch of step `number`, which is the last step or the one before;
  /// no rows: in all of it.
  virtual std::string describe_samples(std::int64_t number, std::int64_t micro,
                                       std::span<const std::int64_t> rows) const = 0;

  /// Sums over the evaluation batches of this rank: at most `batches`, and only as long as `goes_on` returns true
  /// before each; empty if there are none.
  virtual std::optional<Score> evaluate(TrainStep& step, std::int64_t batches,
                                        const std::function<bool()>& goes_on) = 0;
  /// The results of an evaluation, as metrics and in words.
  virtual io::Json score_metrics(const Score& all) const = 0;
  virtual std::string score_words(const Score& all) const = 0;

  /// The files of a model folder other than the weights.
  virtual void save_beside(const std::filesystem::path& folder) const = 0;
  /// Writes the model as others read it, as of the last fetch() of the step. All ranks that share its layers call it.
  virtual void save_model(const models::Trainable& model, const std::filesystem::path& folder) const = 0;
};

/// The task that `config` describes, whose [model] it completes. Collective over the ranks of the mesh; reads and
/// prepares the data. Throws parallel::Disagreement where ranks have found other data, or made another model of it.
std::unique_ptr<Task> make_task(RunConfig& config, const parallel::Mesh& mesh, Pool& pool, const Console& console);

}  // namespace hpcdl::train
