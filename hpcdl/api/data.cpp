#include "hpcdl/data.h"

#include <filesystem>

#include "hpcdl/data/loader.h"
#include "hpcdl/data/tokenize.h"
#include "hpcdl/io/tokenizer.h"

namespace hpcdl {

namespace {

std::vector<std::filesystem::path> paths(const std::vector<std::string>& names) { return {names.begin(), names.end()}; }

}  // namespace

Tokenizer::Tokenizer(io::Tokenizer tokenizer) : tokenizer_(std::make_unique<io::Tokenizer>(std::move(tokenizer))) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::load(const std::string& file_or_folder) { return Tokenizer(io::Tokenizer::load(file_or_folder)); }

Tokenizer Tokenizer::train(const std::vector<std::string>& texts, int vocab, Pool& pool) {
  return Tokenizer(data::train_tokenizer(data::resolve_text_files(paths(texts)), {}, vocab, pool));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text) const { return tokenizer_->encode(text); }
std::string Tokenizer::decode(std::span<const std::int32_t> ids) const { return tokenizer_->decode(ids); }
std::int32_t Tokenizer::vocab() const { return tokenizer_->vocab_size(); }
void Tokenizer::save(const std::string& file) const { tokenizer_->save(file); }

std::int64_t Tokenizer::write_tokens(const std::vector<std::string>& texts, const std::string& file, Pool& pool) const {
  return data::write_shard(data::resolve_text_files(paths(texts)), {}, *tokenizer_, pool, file, data::ShardLayout::llmc)
      .tokens;
}

Batches::Batches(const std::vector<std::string>& files, const BatchOptions& options)
    : loader_(std::make_unique<data::Loader>(data::open_token_files(paths(files)),
                                             data::LoaderOptions{.batch = options.batch,
                                                                 .context = options.length,
                                                                 .seed = options.seed,
                                                                 .vocab = options.vocab,
                                                                 .rank = options.ranks.rank(),
                                                                 .world = options.ranks.size()})) {}
Batches::Batches(Batches&&) noexcept = default;
Batches& Batches::operator=(Batches&&) noexcept = default;
Batches::~Batches() = default;

TokenBatch Batches::next() {
  const auto& batch = loader_->next();
  return {batch.tokens, batch.targets};
}

std::int64_t Batches::samples_per_epoch() const { return loader_->samples_per_epoch(); }

}  // namespace hpcdl
