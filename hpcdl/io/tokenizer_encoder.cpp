#include "hpcdl/io/tokenizer_encoder.h"

#include <atomic>
#include <exception>
#include <mutex>

namespace hpcdl::io {
namespace {

// Small enough to balance the work, large enough to make the scheduling cheap.
constexpr std::size_t kTaskBytes = 1 << 16;

}  // namespace

Encoder::Encoder(const Tokenizer& tokenizer, Pool& pool) : tokenizer_(tokenizer), pool_(pool) {
  for (int t = 0; t < pool.threads(); ++t) caches_.push_back({WordCache(tokenizer_.model())});
}

std::vector<TextPiece> Encoder::cut(std::span<const std::string_view> documents, TokenId before_each,
                                    std::deque<std::string>& owned) const {
  const bool cuttable = tokenizer_.splitter().cuttable();
  std::vector<TextPiece> out;
  for (const std::string_view document : documents) {
    if (before_each >= 0) out.push_back({{}, before_each});
    for (TextPiece piece : tokenizer_.pieces(document, owned)) {
      while (cuttable && piece.text.size() > 2 * kTaskBytes) {
        const std::size_t at = find_safe_cut(piece.text, kTaskBytes);
        if (at == std::string_view::npos) break;
        out.push_back({piece.text.substr(0, at), -1, piece.begins, piece.at_start});
        piece.text.remove_prefix(at);
        piece.at_start = false;
      }
      out.push_back(piece);
    }
  }
  return out;
}

void Encoder::encode(std::span<const std::string_view> documents, TokenId before_each, std::vector<TokenId>& out) {
  std::deque<std::string> owned;
  encode(cut(documents, before_each, owned), out);
}

void Encoder::encode(std::string_view text, std::vector<TokenId>& out, bool begins) {
  std::deque<std::string> owned;
  std::vector<TextPiece> pieces = cut({&text, 1}, -1, owned);
  if (!pieces.empty()) {
    pieces.front().begins = begins;
    pieces.front().at_start &= begins;
  }
  encode(pieces, out);
}

void Encoder::encode(const std::vector<TextPiece>& pieces, std::vector<TokenId>& out) {
  std::vector<Task> tasks;
  for (std::size_t i = 0, bytes = kTaskBytes; i < pieces.size(); ++i) {
    if (bytes >= kTaskBytes) {
      tasks.push_back({i, i, {}});
      bytes = 0;
    }
    tasks.back().end = i + 1;
    bytes += pieces[i].text.size();
  }
  std::atomic<std::size_t> next{0};
  std::exception_ptr error;
  std::mutex error_mutex;
  const auto work = [&](int thread) {
    WordCache& cache = caches_[static_cast<std::size_t>(thread)].cache;
    for (std::size_t t; (t = next.fetch_add(1)) < tasks.size();) try {
        // Built locally and moved at the end, because neighbours in `tasks` share cache lines.
        std::vector<TokenId> ids;
        ids.reserve(kTaskBytes / 2);
        for (std::size_t i = tasks[t].begin; i < tasks[t].end; ++i) {
          if (pieces[i].id >= 0) ids.push_back(pieces[i].id);
          else
            tokenizer_.splitter().for_each_word(
                pieces[i].text, [&](std::string_view w) { cache.encode_word(w, ids); }, pieces[i].begins,
                pieces[i].at_start);
        }
        tasks[t].ids = std::move(ids);
      } catch (...) {
        const std::scoped_lock lock(error_mutex);
        if (!error) error = std::current_exception();
      }
  };
  if (tasks.size() == 1) work(0);
  else pool_.run(work);
  if (error) std::rethrow_exception(error);
  for (const Task& task : tasks) out.insert(out.end(), task.ids.begin(), task.ids.end());
}

}  // namespace hpcdl::io
