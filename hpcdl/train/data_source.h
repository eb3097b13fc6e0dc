#pragma once
// The batches that a run trains on: tokens, images, or those of another implementation.

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hpcdl/data/split_data.h"
#include "hpcdl/models/trainable.h"
#include "hpcdl/parallel/agreement.h"
#include "hpcdl/tensor.h"

namespace hpcdl {
struct Console;
}
namespace hpcdl::parallel {
class Mesh;
}

namespace hpcdl::train {

struct RunConfig;

/// The unit in which the samples of a run are counted.
struct Units {
  const char* name;      // key of metrics: "tokens"
  const char* rate;      // "tokens_per_second"
  const char* brief;     // unit of a rate on the progress line: "tok/s"
  const char* targets;   // what an evaluation counts, in words: "images"
  std::int64_t in_row;   // units in a row of a batch
  bool classes = false;  // targets are classes, and right answers are counted
};

/// A micro-batch, in host memory or on the GPU that computes.
struct Batch {
  std::vector<std::pair<std::string_view, View>> tensors;  // by the name of the input of a pass
  std::span<const std::int64_t> samples;                   // which samples the rows are; for training batches
  std::int64_t valid = 0;                                  // targets that count

  /// The tensors in the order in which a pass takes them.
  std::vector<View> of(std::span<const models::InputSpec> inputs) const;
};

/// Bytes that the data of a run need.
struct DataMemory {
  std::int64_t ahead = 0;   // batches that are fetched ahead
  std::int64_t held = 0;    // host memory in the course of the run
  std::int64_t mapped = 0;  // files that stay mapped: addresses, not memory
};

class DataSource {
 public:
  virtual ~DataSource() = default;

  virtual Units units() const = 0;
  /// A description of the training data, in words.
  virtual std::string describe() const = 0;
  /// Says which samples these are.
  virtual std::string describe_samples(std::span<const std::int64_t> samples) const = 0;
  /// Facts that identify the data, the tokenizer and the classes, and must be the same on all ranks.
  virtual std::vector<parallel::Fact> facts() const = 0;
  /// Rows of an epoch, over all ranks.
  virtual std::int64_t rows() const = 0;
  /// With batches of `batch` samples.
  virtual DataMemory memory(std::int64_t batch) const = 0;

  /// Throws UsageError unless the model folder belongs to the model and the data of this run.
  virtual void check_resumes(const std::filesystem::path& folder) const = 0;
  /// Writes the part of a model folder that comes from the data, such as the tokenizer.
  virtual void save_beside(const std::filesystem::path& folder) const = 0;

  /// Opens the training data at a sample, and the evaluation data if `evaluates`; to be called before next().
  /// `compute`: where steps are queued.
  virtual void open(const data::LoaderState& start, bool evaluates, const Stream& compute) = 0;
  /// The next micro-batch of this rank, in host memory valid until the next call.
  virtual Batch next() = 0;
  /// Where the batch after the last one fetched begins.
  virtual data::LoaderState position() const = 0;
  /// Seconds for which training waited for data: the time of the thread that calls next(), or that of the GPU.
  virtual double waited_seconds() const = 0;

  /// Returns to the first evaluation batch. False if there are no evaluation batches.
  virtual bool begin_evaluation() = 0;
  /// The next one of this rank, valid until the next call; nothing at the end.
  virtual std::optional<Batch> next_evaluation() = 0;
};

/// All kinds of data, each of which is one file (docs/adding_a_data_source.md). open_NAME_source() completes `config` from the
/// data, one rank of each host first. Null if the run trains on another kind.
#define HPCDL_DATA_SOURCES(ONE) ONE(image) ONE(text) ONE(chat)

#define HPCDL_OPEN(name)                                                                                      \
  std::unique_ptr<DataSource> open_##name##_source(RunConfig& config, const parallel::Mesh& mesh, Pool& pool, \
                                                   const Console& console);
HPCDL_DATA_SOURCES(HPCDL_OPEN)
#undef HPCDL_OPEN

}  // namespace hpcdl::train
