// Conversations, one in each row of a batch, or packed: as many as fit. What follows a conversation in its row is not
// learned, and no token of the conversation attends to it.

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "hpcdl/core/error.h"
#include "hpcdl/core/units.h"
#include "hpcdl/data/chat.h"
#include "hpcdl/data/pack_rows.h"
#include "hpcdl/data/permute.h"
#include "hpcdl/data/split_data.h"
#include "hpcdl/data/text_source.h"
#include "hpcdl/io/crc32c.h"
#include "hpcdl/io/gguf/file.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/train/config.h"
#include "hpcdl/train/data_source.h"
#include "hpcdl/train/progress.h"
#include "hpcdl/train/rows_of_rank.h"
#include "hpcdl/train/text_model.h"

namespace hpcdl::train {

namespace {

namespace fs = std::filesystem;

/// Shorter rows than train.length says are a multiple of this.
std::int64_t rounding(const parallel::Mesh& mesh) {
  return std::lcm(std::int64_t{16}, std::int64_t{nn::ContextShare::kChunks} * mesh.shape().cp);
}

struct Chats {
  io::Tokenizer tokenizer;
  data::ChatSet set;
};

io::ChatTemplate template_of(const RunConfig& c, const fs::path& tokenizer) {
  if (!c.data.chat_template.empty())
    return io::ChatTemplate::parse(io::read_file(c.data.chat_template), c.data.chat_template);
  const auto folder = fs::is_directory(tokenizer) || io::is_gguf(tokenizer) ? tokenizer : tokenizer.parent_path();
  const auto found = io::load_chat_template(folder);
  if (!found)
    fail_usage("data", "{} has no chat template: set data.template to a file that holds one", folder.string());
  return *found;
}

Chats read(const RunConfig& c) {
  if (!c.data.text.empty()) fail_usage("data", "data.text and data.chat exclude each other: give one of them");
  const auto tokenizer = tokenizer_of(c);
  if (tokenizer.empty())
    fail_usage("data", "data.chat needs the tokenizer of a model: set model.init, or data.tokenizer");
  const auto files = data::resolve_text_files(std::vector<fs::path>(c.data.chat.begin(), c.data.chat.end()));
  Chats chats{io::Tokenizer::load(tokenizer), {}};
  // A row of n tokens and their targets takes n + 1 tokens.
  chats.set = data::read_chats(files, template_of(c, tokenizer), chats.tokenizer, c.data.mask, c.length() + 1);
  return chats;
}

std::uint32_t checksum(std::span<const data::ChatSample> samples) {
  std::uint32_t crc = 0;
  for (const auto& s : samples)
    crc = io::crc32c(std::as_bytes(std::span(s.tokens)), io::crc32c(fmt::format("{}", fmt::join(s.learned, "")), crc));
  return crc;
}

class ChatSource final : public DataSource {
 public:
  ChatSource(RunConfig& config, const parallel::Mesh& mesh, const Console& console)
      : config_(config),
        mesh_(mesh),
        rows_of_rank_(mesh, config.parallel.cp_mode),
        chats_(parallel::host_by_host(mesh.world(), [&] { return read(config); })) {
    fit_vocabulary(config_, chats_.tokenizer);
    // Rows are no longer than the longest conversation. The last token is a target only.
    const auto unit = rounding(mesh), enough = (chats_.set.longest - 1 + unit - 1) / unit * unit;
    config_.train.length = config_.data.packing ? config_.length() : std::min(config_.length(), std::max(enough, unit));
    const auto all = std::span<const data::ChatSample>(chats_.set.samples);
    const auto n = std::ssize(all);
    const auto kept = static_cast<std::int64_t>(config_.data.val_fraction * static_cast<double>(n));
    train_ = rows_of(all.first(static_cast<std::size_t>(n - kept)));
    eval_ = rows_of(all.last(static_cast<std::size_t>(kept)));
    say_what_was_cut(console);
  }

  Units units() const override { return {"tokens", "tokens_per_second", "tok/s", "tokens", config_.length()}; }
  std::string describe() const override {
    return fmt::format("{} conversations{}, {} learned tokens", chats_.set.samples.size(),
                       config_.data.packing ? fmt::format(" in {} rows", train_.size() + eval_.size()) : "",
                       format_count(static_cast<double>(chats_.set.learned)));
  }
  std::string describe_samples(std::span<const std::int64_t> samples) const override {
    return fmt::format("{} {} of data.chat, counted from 0", config_.data.packing ? "packed rows" : "conversations",
                       fmt::join(samples, ", "));
  }
  std::vector<parallel::Fact> facts() const override {
    return {{"data.tokenizer", fmt::format("a vocabulary of {} with checksum {:08x}", chats_.tokenizer.vocab_size(),
                                           io::crc32c(chats_.tokenizer.to_json()))},
            {"data.chat", fmt::format("{} conversations with checksum {:08x}", chats_.set.samples.size(),
                                      checksum(chats_.set.samples))}};
  }
  std::int64_t rows() const override { return std::ssize(train_); }
  DataMemory memory(std::int64_t batch) const override {
    std::int64_t tokens = 0;
    for (const auto& s : chats_.set.samples) tokens += std::ssize(s.tokens);
    return {.ahead = 2 * batch * config_.length() * std::int64_t{sizeof(data::TokenId)},
            .held = tokens * std::int64_t{sizeof(data::TokenId)} + tokens / 8};
  }
  void check_resumes(const fs::path& folder) const override { check_text_resumes(folder, config_, chats_.tokenizer); }
  void save_beside(const fs::path& folder) const override { save_text_files(folder, config_, chats_.tokenizer); }

  void open(const data::LoaderState& start, bool evaluates, const Stream&) override {
    at_ = start;
    evaluates_ = evaluates && !eval_.empty();
    begin_evaluation();
  }

  Batch next() override {
    const auto b = config_.train.batch, n = rows();
    const auto part = data::split_data(at_, b * mesh_.dp().size(), n, mesh_.dp().rank(), mesh_.dp().size());
    clear();
    numbers_.clear();
    for (std::int64_t row = 0; row < b; ++row) {
      const auto place = data::advanced(part.first, row, n);
      const data::Permutation order(static_cast<std::uint64_t>(n), config_.train.seed,
                                    static_cast<std::uint64_t>(place.epoch));
      numbers_.push_back(static_cast<std::int64_t>(order(static_cast<std::uint64_t>(place.index))));
      fill(row, train_[static_cast<std::size_t>(numbers_.back())]);
    }
    at_ = part.after;
    return batch(numbers_);
  }
  data::LoaderState position() const override { return at_; }
  double waited_seconds() const override { return 0; }

  bool begin_evaluation() override {
    eval_at_ = mesh_.dp().rank() * config_.train.batch;
    return evaluates_;
  }
  std::optional<Batch> next_evaluation() override {
    const auto b = config_.train.batch, n = std::ssize(eval_);
    if (eval_at_ >= n) return std::nullopt;
    clear();
    for (std::int64_t row = 0; row < b && eval_at_ + row < n; ++row)
      fill(row, eval_[static_cast<std::size_t>(eval_at_ + row)]);
    eval_at_ += b * mesh_.dp().size();
    return batch({});
  }

 private:
  using Row = std::vector<const data::ChatSample*>;

  /// The tokens of a sample that are in a row. The last one is a target only.
  std::int64_t tokens_of(const data::ChatSample& sample) const {
    return std::min(std::ssize(sample.tokens) - 1, config_.length());
  }
  std::vector<Row> rows_of(std::span<const data::ChatSample> samples) const {
    std::vector<Row> rows;
    if (!config_.data.packing) {
      for (const auto& s : samples) rows.push_back({&s});
      return rows;
    }
    std::vector<std::int64_t> lengths;
    for (const auto& s : samples) lengths.push_back(tokens_of(s));
    for (const auto& numbers : data::pack_rows(lengths, config_.length())) {
      auto& row = rows.emplace_back();
      for (const auto i : numbers) row.push_back(&samples[static_cast<std::size_t>(i)]);
    }
    return rows;
  }
  void say_what_was_cut(const Console& console) const {
    const auto& s = chats_.set;
    if (s.cut > 0)
      Progress(console).say(fmt::format(
          "{} of {} conversations are longer than {} tokens (the longest has {}) and were cut{}", s.cut,
          std::ssize(s.samples) + s.dropped, config_.length(), s.longest,
          s.dropped > 0 ? fmt::format("; of {} nothing that is learned remained, and they are left out", s.dropped)
                        : ""));
    if (train_.empty())
      fail_usage("data", "data.val_fraction = {} leaves no conversation to train on: lower it",
                 config_.data.val_fraction);
  }

  void clear() {
    const auto n = static_cast<std::size_t>(config_.train.batch * config_.length());
    tokens_.assign(n, 0), targets_.assign(n, -1), positions_.assign(n, 0);
    valid_ = 0;
  }
  void fill(std::int64_t row, const Row& samples) {
    auto first = static_cast<std::size_t>(row * config_.length());
    for (const auto* sample : samples) {
      const auto n = static_cast<std::size_t>(tokens_of(*sample));
      for (std::size_t i = 0; i < n; ++i) {
        tokens_[first + i] = sample->tokens[i], positions_[first + i] = static_cast<std::int32_t>(i);
        if (!sample->learned[i + 1]) continue;
        targets_[first + i] = sample->tokens[i + 1];
        ++valid_;
      }
      first += n;
    }
  }
  Batch batch(std::span<const std::int64_t> samples) {
    auto b = rows_of_rank_.of(tokens_, targets_, config_.train.batch, config_.length(), valid_, samples);
    if (config_.data.packing) b.tensors.emplace_back("positions", View(positions_.data(), b.tensors[0].second.spec()));
    return b;
  }

  RunConfig& config_;
  const parallel::Mesh& mesh_;
  RowsOfRank rows_of_rank_;
  Chats chats_;
  std::vector<Row> train_, eval_;
  data::LoaderState at_;
  std::int64_t eval_at_ = 0, valid_ = 0;
  bool evaluates_ = false;
  std::vector<data::TokenId> tokens_, targets_;
  std::vector<std::int32_t> positions_;  // of tokens in their conversations
  std::vector<std::int64_t> numbers_;
};

}  // namespace

std::unique_ptr<DataSource> open_chat_source(RunConfig& config, const parallel::Mesh& mesh, Pool&,
                                             const Console& console) {
  if (config.data.chat.empty()) return nullptr;
  return std::make_unique<ChatSource>(config, mesh, console);
}

}  // namespace hpcdl::train
