#pragma once
// Encodes large texts on all threads of a pool, each with a cache of words.

#include <span>
#include <string_view>
#include <vector>

#include "hpcdl/io/tokenizer.h"
#include "hpcdl/pool.h"

namespace hpcdl::io {

/// For one caller at a time. The ids do not depend on the number of threads: a text is cut only where a word ends
/// in any context (find_safe_cut()).
class Encoder {
 public:
  Encoder(const Tokenizer& tokenizer, Pool& pool);

  /// Appends the ids of the documents one after another, each after `before_each` if that is >= 0.
  void encode(std::span<const std::string_view> documents, TokenId before_each, std::vector<TokenId>& out);
  /// Appends the ids of one text; if `begins` is false, it continues where the last one was cut.
  void encode(std::string_view text, std::vector<TokenId>& out, bool begins = true);

 private:
  /// A share of the pieces that one thread works on at a time.
  struct Task {
    std::size_t begin, end;
    std::vector<TokenId> ids;
  };
  struct alignas(64) PaddedCache {
    WordCache cache;
  };
  std::vector<TextPiece> cut(std::span<const std::string_view> documents, TokenId before_each,
                             std::deque<std::string>& owned) const;
  void encode(const std::vector<TextPiece>& pieces, std::vector<TokenId>& out);

  Tokenizer tokenizer_;
  Pool& pool_;
  std::vector<PaddedCache> caches_;  // one per thread
};

}  // namespace hpcdl::io
