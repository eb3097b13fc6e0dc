#include "hpcdl/data/tokenize.h"

#include <algorithm>
#include <atomic>
#include <unordered_map>

#include "hpcdl/core/error.h"
#include "hpcdl/io/bpe_train.h"
#include "hpcdl/io/tokenizer_encoder.h"

namespace hpcdl::data {
namespace {

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
};
struct alignas(64) Counts {  // on separate cache lines, because each thread has one
  std::unordered_map<std::string, std::int64_t, TextHash, std::equal_to<>> of;
};

/// Counts words on all threads, each with its own table.
class WordCounter {
 public:
  WordCounter(const io::PreTokenizer& splitter, const io::AddedTokens& special, Pool& pool)
      : splitter_(splitter), special_(special), pool_(pool), counts_(static_cast<std::size_t>(pool.threads())) {}

  void add(const std::vector<TextPart>& parts) {
    constexpr std::size_t kShare = 1 << 18;
    std::vector<std::string_view> shares;
    for (const TextPart& part : parts) {
      std::string_view rest = part.text;
      for (std::size_t cut;
           rest.size() > 2 * kShare && (cut = io::find_safe_cut(rest, kShare)) != std::string_view::npos;) {
        shares.push_back(rest.substr(0, cut));
        rest.remove_prefix(cut);
      }
      shares.push_back(rest);
    }
    std::atomic<std::size_t> next{0};
    pool_.run([&](int thread) {
      for (std::size_t i; (i = next.fetch_add(1)) < shares.size();)
        count(shares[i], counts_[static_cast<std::size_t>(thread)]);
    });
  }

  io::WordCounts finish() {
    for (std::size_t t = 1; t < counts_.size(); ++t) {
      auto& of = counts_[t].of;
      counts_[0].of.merge(of);
      for (const auto& [word, n] : of) counts_[0].of.find(word)->second += n;  // what was already in the table
      of.clear();
    }
    auto& all = counts_[0].of;
    io::WordCounts words;
    words.reserve(all.size());
    while (!all.empty()) {  // moved, not copied, because a text may be one word
      auto node = all.extract(all.begin());
      words.emplace_back(std::move(node.key()), node.mapped());
    }
    std::sort(words.begin(), words.end());
    return words;
  }

 private:
  void count(std::string_view text, Counts& counts) const {
    std::vector<io::TextPiece> pieces;
    special_.split(text, pieces);
    for (const io::TextPiece& piece : pieces)
      splitter_.for_each_word(piece.text, [&](std::string_view word) {
        const auto at = counts.of.find(word);
        if (at != counts.of.end()) ++at->second;
        else counts.of.emplace(word, 1);
      });
  }

  const io::PreTokenizer& splitter_;
  const io::AddedTokens& special_;
  Pool& pool_;
  std::vector<Counts> counts_;
};

std::string names_of(const std::vector<fs::path>& files) {
  return files.size() == 1 ? files[0].string()
                           : fmt::format("{} and {} more files", files.at(0).string(), files.size() - 1);
}

/// The memory of the reader is freed at the end of this, because training needs it.
void count_words(WordCounter& counter, const std::vector<fs::path>& files, const TextOptions& options,
                 const OnProgress& progress) {
  TextReader reader(files, options);
  bool any = false;
  for (auto parts = reader.read(); !parts.empty(); parts = reader.read()) {
    for (const TextPart& p : parts) any = any || !p.text.empty();
    counter.add(parts);
    if (progress) progress({"read", reader.done_bytes(), reader.total_bytes()});
  }
  require(any, "data", "{}: expected text, found none", names_of(files));
}

}  // namespace

io::Tokenizer train_tokenizer(std::vector<fs::path> files, const TextOptions& options, int vocab_size, Pool& pool,
                              const OnProgress& progress) {
  require(!files.empty(), "data", "no text files to train a tokenizer on");
  io::BpeTraining training{.vocab_size = vocab_size, .special = {std::string(io::kEndOfText)}};
  const std::vector<io::AddedToken> special = {{.content = training.special[0], .id = 0}};
  // A tokenizer of bytes has the same splitter as the trained one; it also refuses a vocabulary that is too small.
  const auto bytes_only = io::Tokenizer::from_bpe(io::train_bpe({}, training), special);
  const io::AddedTokens separators(special);
  WordCounter counter(bytes_only.splitter(), separators, pool);
  count_words(counter, files, options, progress);
  if (progress) training.progress = [&](int done, int total) { progress({"merge", done, total}); };
  return io::Tokenizer::from_bpe(io::train_bpe(counter.finish(), training), special);
}

TokenCounts encode_files(std::vector<fs::path> files, const TextOptions& options, const io::Tokenizer& tokenizer,
                         Pool& pool, const std::function<void(std::span<const TokenId>)>& take,
                         const OnProgress& progress) {
  require(!files.empty(), "data", "no text files to encode");
  const TokenId separator = tokenizer.end_of_text().value_or(-1);
  io::Encoder encoder(tokenizer, pool);
  TextOptions whole_tokens = options;
  whole_tokens.is_inside = [&](std::string_view text, std::size_t at) { return tokenizer.added_token_over(text, at); };
  TextReader reader(files, whole_tokens);
  TokenCounts counts;
  bool any = false;
  std::vector<TokenId> ids;
  for (auto parts = reader.read(); !parts.empty(); parts = reader.read()) {
    ids.clear();
    std::vector<std::string_view> whole;
    for (const TextPart& p : parts) {
      any = any || !p.text.empty();
      if (p.begins_document) {
        whole.push_back(p.text);
        continue;
      }
      encoder.encode(whole, separator, ids);
      whole.clear();
      encoder.encode(p.text, ids, false);
    }
    encoder.encode(whole, separator, ids);
    take(ids);
    counts.tokens += static_cast<std::int64_t>(ids.size());
    if (progress) progress({"encode", reader.done_bytes(), reader.total_bytes()});
  }
  require(any, "data", "{}: expected text, found none", names_of(files));
  counts.documents = reader.documents();
  return counts;
}

TokenCounts write_shard(std::vector<fs::path> files, const TextOptions& options, const io::Tokenizer& tokenizer,
                        Pool& pool, const fs::path& out, ShardLayout layout, const OnProgress& progress) {
  ShardWriter writer(out, layout, tokenizer.vocab_size());
  const TokenCounts counts = encode_files(
      std::move(files), options, tokenizer, pool, [&](std::span<const TokenId> ids) { writer.append(ids); }, progress);
  writer.finish();
  return counts;
}

}  // namespace hpcdl::data
