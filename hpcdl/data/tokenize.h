#pragma once
// The two long jobs on raw text: learn a tokenizer from it, and encode it as tokens. Both stream it, on all threads.

#include <functional>
#include <span>

#include "hpcdl/data/shards.h"
#include "hpcdl/data/text_source.h"
#include "hpcdl/io/tokenizer.h"
#include "hpcdl/pool.h"

namespace hpcdl::data {

/// Progress of a job: stages "read" and "encode" count bytes of the files, "merge" counts tokens of the vocabulary.
struct TokenizeProgress {
  std::string_view stage;
  std::int64_t done = 0, total = 0;
};
using OnProgress = std::function<void(const TokenizeProgress&)>;

/// A byte-level BPE with the GPT-2 pattern and the special token <|endoftext|> (id 0). The same for any number of
/// threads. May have fewer tokens than requested if the text has no more pairs.
io::Tokenizer train_tokenizer(std::vector<fs::path> files, const TextOptions& options, int vocab_size, Pool& pool,
                              const OnProgress& progress = {});

struct TokenCounts {
  std::int64_t tokens = 0, documents = 0;
};

/// Calls take(tokens) with the ids of the files in order, every document after the tokenizer's end-of-text token.
/// Throws Error if the files hold no text.
TokenCounts encode_files(std::vector<fs::path> files, const TextOptions& options, const io::Tokenizer& tokenizer,
                         Pool& pool, const std::function<void(std::span<const TokenId>)>& take,
                         const OnProgress& progress = {});

/// Runs encode_files() into one token file.
TokenCounts write_shard(std::vector<fs::path> files, const TextOptions& options, const io::Tokenizer& tokenizer,
                        Pool& pool, const fs::path& out, ShardLayout layout, const OnProgress& progress = {});

}  // namespace hpcdl::data
