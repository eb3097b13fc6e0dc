#pragma once
// Batches for training and evaluation. The order of training samples is a pure function of (seed, epoch, index):
// nothing is stored but these numbers, and neither prefetching nor the number of ranks changes the order
// of samples.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "hpcdl/data/shards.h"
#include "hpcdl/data/split_data.h"

namespace hpcdl::data {

struct LoaderOptions {
  std::int64_t batch = 8;      // B, sequences of this rank
  std::int64_t context = 256;  // T
  std::uint64_t seed = 0;
  TokenId vocab = 0;        // tokens must be below this; 0: not checked
  int rank = 0, world = 1;  // among the ranks that share the data; see split_data()
  int prefetch = 4;         // batches made ahead
};

/// Valid until the next call of the loader.
struct Batch {
  std::span<const TokenId> tokens;             // (B, T)
  std::span<const TokenId> targets;            // (B, T), the token that follows; -1: not counted
  std::int64_t valid = 0;                      // targets >= 0
  std::span<const std::int64_t> samples = {};  // (B), the numbers of the windows; for training batches
};

/// The samples of a list of token files: consecutive windows of T + 1 tokens, none across two files.
class SampleIndex {
 public:
  /// Throws Error if no file holds T + 1 tokens.
  SampleIndex(std::vector<TokenFile> files, std::int64_t context);
  std::int64_t samples() const { return first_.back(); }
  /// Copies sample i: T tokens and, for each, the token that follows it.
  void read(std::int64_t i, TokenId vocab, std::span<TokenId> tokens, std::span<TokenId> targets) const;

 private:
  std::vector<TokenFile> files_;
  std::int64_t context_;
  std::vector<std::int64_t> first_;  // of each file; one more at the end
};

/// Endless batches; a thread prepares them ahead. When the samples of an epoch end, the batch is filled from the next
/// epoch.
class Loader {
 public:
  Loader(std::vector<TokenFile> files, const LoaderOptions& options, LoaderState start = {});
  Loader(const Loader&) = delete;
  ~Loader();

  const Batch& next();
  /// The position of the batch after the last one returned, which a checkpoint stores.
  LoaderState state() const { return state_; }
  std::int64_t samples_per_epoch() const { return index_.samples(); }
  /// Time that next() has waited since construction.
  double waited_seconds() const { return waited_; }

 private:
  struct Slot {
    std::vector<TokenId> tokens, targets;
    std::vector<std::int64_t> samples;
    Batch batch;
    LoaderState after;
  };
  void produce();
  void fill(Slot& slot, LoaderState at) const;

  SampleIndex index_;
  LoaderOptions options_;
  LoaderState state_;
  double waited_ = 0;
  std::vector<Slot> slots_;
  std::mutex mutex_;
  std::condition_variable made_cv_, taken_cv_;
  std::int64_t made_ = 0, taken_ = 0;  // batches; slot of batch b is b % slots
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

/// Every token of the files once, in order, the last batch is filled with targets of -1. Batches are distributed among
/// the ranks in turns.
class EvalBatches {
 public:
  EvalBatches(std::vector<TokenFile> files, std::int64_t batch, std::int64_t context, TokenId vocab, int rank = 0,
              int world = 1);
  /// nullptr at the end.
  const Batch* next();
  void rewind() { row_ = rank_ * batch_; }
  /// Targets in all batches of all ranks.
  std::int64_t targets() const { return targets_; }

 private:
  std::vector<TokenFile> files_;
  std::int64_t batch_, context_;
  TokenId vocab_;
  int rank_, world_;
  std::int64_t targets_ = 0, row_ = 0;
  std::vector<std::int64_t> first_row_;  // of each file; one more at the end
  std::vector<TokenId> tokens_, targets_of_;
  Batch out_;
};

}  // namespace hpcdl::data
