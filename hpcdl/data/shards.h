#pragma once
// Token files. llm.c and modded-nanogpt: 256 x i32 header {magic, version, count}, then u16 (20240520, 1) or, for large
// vocabularies, u32 (20240801, 7). nanoGPT: u16 without a header. A count beyond 31 bits continues in the fourth word.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/bpe.h"
#include "hpcdl/io/mapped_file.h"

namespace hpcdl::data {

namespace fs = std::filesystem;
using io::TokenId;

enum class ShardLayout { llmc, nanogpt };

/// Throws UsageError for anything but "llmc" and "nanogpt".
ShardLayout parse_shard_layout(std::string_view name);

/// Writes to a temporary file; the whole file appears with finish(), or not at all.
class ShardWriter {
 public:
  /// The vocabulary chooses u16 or u32. Throws Error if it does not fit the layout.
  ShardWriter(const fs::path& path, ShardLayout layout, TokenId vocab);
  /// Throws Error for a token outside the vocabulary.
  void append(std::span<const TokenId> tokens);
  void finish();
  std::int64_t count() const { return count_; }

 private:
  fs::path path_;
  ShardLayout layout_;
  TokenId vocab_;
  bool wide_;
  io::AtomicFile file_;
  std::int64_t count_ = 0;
};

/// Tokens of one mapped file, or of memory.
class TokenFile {
 public:
  /// Recognises the layout by its magic; a file without one is u16. Throws Error if header and size disagree.
  static TokenFile open(const fs::path& path);
  static TokenFile from_tokens(std::vector<TokenId> tokens);

  std::int64_t size() const { return size_; }
  const std::string& name() const { return name_; }
  /// Copies tokens [begin, begin + out.size()).
  void read(std::int64_t begin, std::span<TokenId> out) const;
  /// Throws Error that names the first token >= vocab in the range.
  void check_below(TokenId vocab, std::int64_t begin, std::span<const TokenId> tokens) const;
  /// The same check for the whole file.
  void check_below(TokenId vocab) const;

 private:
  std::string name_ = "tokens in memory";
  std::shared_ptr<const io::MappedFile> file_;
  std::shared_ptr<const std::vector<TokenId>> memory_;
  const std::byte* data_ = nullptr;
  int width_ = 4;
  std::int64_t size_ = 0;
};

/// The files that paths name: for a .bin file that file, for a folder all .bin files in it whose names begin with
/// `prefix`.
std::vector<TokenFile> open_token_files(std::span<const fs::path> paths, std::string_view prefix = "");

}  // namespace hpcdl::data
