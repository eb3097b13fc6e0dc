#include "hpcdl/data/loader.h"

#include <algorithm>

#include "hpcdl/core/clock.h"
#include "hpcdl/core/error.h"
#include "hpcdl/data/permute.h"

namespace hpcdl::data {
namespace {

std::size_t file_of(const std::vector<std::int64_t>& first, std::int64_t i) {
  return static_cast<std::size_t>(std::upper_bound(first.begin(), first.end(), i) - first.begin()) - 1;
}

/// Copies tokens [begin, begin + n) and the token after each.
void read_window(const TokenFile& file, std::int64_t begin, TokenId vocab, std::span<TokenId> tokens,
                 std::span<TokenId> targets) {
  file.read(begin, tokens);
  file.read(begin + 1, targets);
  if (vocab <= 0) return;
  file.check_below(vocab, begin, tokens);
  file.check_below(vocab, begin + 1, targets);
}

}  // namespace

SampleIndex::SampleIndex(std::vector<TokenFile> files, std::int64_t context)
    : files_(std::move(files)), context_(context), first_{0} {
  require(context > 0, "data", "expected a context of at least 1 token, found {}", context);
  std::int64_t tokens = 0;
  for (const TokenFile& f : files_) {
    tokens += f.size();
    first_.push_back(first_.back() + std::max<std::int64_t>(f.size() - 1, 0) / context);
  }
  require(
      samples() > 0, "data",
      "{} tokens in {} file(s) are fewer than one sequence of {} and its target; give more text or a smaller context",
      tokens, files_.size(), context);
}

void SampleIndex::read(std::int64_t i, TokenId vocab, std::span<TokenId> tokens, std::span<TokenId> targets) const {
  const std::size_t f = file_of(first_, i);
  read_window(files_[f], (i - first_[f]) * context_, vocab, tokens, targets);
}

Loader::Loader(std::vector<TokenFile> files, const LoaderOptions& options, LoaderState start)
    : index_(std::move(files), options.context), options_(options), state_(start) {
  require(options.batch > 0, "data", "expected a batch of at least 1 sequence, found {}", options.batch);
  require(options.world > 0 && options.rank >= 0 && options.rank < options.world, "data", "rank {} of {}", options.rank,
          options.world);
  require(start.epoch >= 0 && start.index >= 0, "data",
          "a loader cannot continue at epoch {}, index {}: the data have no such position", start.epoch, start.index);
  // One slot more than batches are made ahead: the reader uses it.
  slots_.resize(static_cast<std::size_t>(std::max(options.prefetch, 1)) + 1);
  for (Slot& slot : slots_) {
    slot.tokens.resize(static_cast<std::size_t>(options.batch * options.context));
    slot.targets.resize(slot.tokens.size());
    slot.samples.resize(static_cast<std::size_t>(options.batch));
  }
  thread_ = std::thread([this] { produce(); });
}

Loader::~Loader() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  taken_cv_.notify_all();
  thread_.join();
}

void Loader::fill(Slot& slot, LoaderState at) const {
  const std::int64_t n = index_.samples(), b = options_.batch, t = options_.context;
  const auto part = split_data(at, b * options_.world, n, options_.rank, options_.world);
  for (std::int64_t row = 0; row < b; ++row) {
    const auto place = advanced(part.first, row, n);
    const Permutation order(static_cast<std::uint64_t>(n), options_.seed, static_cast<std::uint64_t>(place.epoch));
    const auto sample = static_cast<std::int64_t>(order(static_cast<std::uint64_t>(place.index)));
    slot.samples[static_cast<std::size_t>(row)] = sample;
    const auto row_of = [&](std::vector<TokenId>& v) {
      return std::span(v).subspan(static_cast<std::size_t>(row * t), static_cast<std::size_t>(t));
    };
    index_.read(sample, options_.vocab, row_of(slot.tokens), row_of(slot.targets));
  }
  slot.after = part.after;
  slot.batch = {slot.tokens, slot.targets, b * t, slot.samples};
}

void Loader::produce() try {
  LoaderState at = state_;
  for (std::int64_t b = 0;; ++b) {
    {
      std::unique_lock lock(mutex_);
      taken_cv_.wait(lock, [&] { return stop_ || b - taken_ < static_cast<std::int64_t>(slots_.size()) - 1; });
      if (stop_) return;
    }
    Slot& slot = slots_[static_cast<std::size_t>(b) % slots_.size()];
    fill(slot, at);
    at = slot.after;
    const std::scoped_lock lock(mutex_);
    made_ = b + 1;
    made_cv_.notify_one();
  }
} catch (...) {
  const std::scoped_lock lock(mutex_);
  error_ = std::current_exception();
  made_cv_.notify_one();
}

const Batch& Loader::next() {
  std::unique_lock lock(mutex_);
  if (made_ == taken_ && !error_) {
    const auto begin = Clock::now();
    made_cv_.wait(lock, [&] { return made_ > taken_ || error_; });
    waited_ += seconds_since(begin);
  }
  if (made_ == taken_) std::rethrow_exception(error_);
  const Slot& slot = slots_[static_cast<std::size_t>(taken_++) % slots_.size()];
  state_ = slot.after;
  lock.unlock();
  taken_cv_.notify_one();
  return slot.batch;
}

EvalBatches::EvalBatches(std::vector<TokenFile> files, std::int64_t batch, std::int64_t context, TokenId vocab,
                         int rank, int world)
    : files_(std::move(files)),
      batch_(batch),
      context_(context),
      vocab_(vocab),
      rank_(rank),
      world_(world),
      first_row_{0} {
  require(batch > 0 && context > 0 && world > 0 && rank >= 0 && rank < world, "data",
          "batch {}, context {}, rank {} of {}", batch, context, rank, world);
  for (const TokenFile& f : files_) {
    const std::int64_t n = std::max<std::int64_t>(f.size() - 1, 0);
    targets_ += n;
    first_row_.push_back(first_row_.back() + (n + context - 1) / context);
  }
  require(targets_ > 0, "data", "expected at least two tokens to evaluate on, found fewer: give more text");
  tokens_.resize(static_cast<std::size_t>(batch * context));
  targets_of_.resize(tokens_.size());
  rewind();
}

const Batch* EvalBatches::next() {
  if (row_ >= first_row_.back()) return nullptr;
  std::fill(tokens_.begin(), tokens_.end(), 0);
  std::fill(targets_of_.begin(), targets_of_.end(), -1);
  out_ = {tokens_, targets_of_, 0};
  for (std::int64_t r = 0; r < batch_ && row_ + r < first_row_.back(); ++r) {
    const std::size_t f = file_of(first_row_, row_ + r);
    const std::int64_t begin = (row_ + r - first_row_[f]) * context_,
                       n = std::min(context_, files_[f].size() - 1 - begin);
    const auto part = [&](std::vector<TokenId>& v) {
      return std::span(v).subspan(static_cast<std::size_t>(r * context_), static_cast<std::size_t>(n));
    };
    read_window(files_[f], begin, vocab_, part(tokens_), part(targets_of_));
    out_.valid += n;
  }
  row_ += batch_ * world_;
  return &out_;
}

}  // namespace hpcdl::data
