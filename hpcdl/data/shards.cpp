#include "hpcdl/data/shards.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "hpcdl/core/error.h"

namespace hpcdl::data {
namespace {

constexpr std::size_t kHeaderWords = 256;
constexpr std::int64_t kHeaderBytes = kHeaderWords * 4;
constexpr std::int32_t kMagic16 = 20240520, kVersion16 = 1, kMagic32 = 20240801, kVersion32 = 7, kMagicEval = 20240522;

template <class T> void append_as(io::AtomicFile& file, std::span<const TokenId> tokens) {
  const std::vector<T> narrow(tokens.begin(), tokens.end());
  file.append(std::as_bytes(std::span(narrow)));
}

template <class T> void widen(const std::byte* from, std::span<TokenId> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    T token;
    std::memcpy(&token, from + i * sizeof(T), sizeof(T));
    out[i] = static_cast<TokenId>(token);
  }
}

}  // namespace

ShardLayout parse_shard_layout(std::string_view name) {
  if (name == "llmc") return ShardLayout::llmc;
  if (name == "nanogpt") return ShardLayout::nanogpt;
  fail_usage("data", "expected the shard layout llmc or nanogpt, found '{}'", name);
}

ShardWriter::ShardWriter(const fs::path& path, ShardLayout layout, TokenId vocab)
    : path_(path), layout_(layout), vocab_(vocab), wide_(vocab > 65536), file_(path) {
  require(!(wide_ && layout == ShardLayout::nanogpt), "data",
          "{}: the nanogpt layout holds 16-bit tokens; a vocabulary of {} needs the llmc layout", path.string(), vocab);
  const std::array<std::int32_t, kHeaderWords> blank{};
  if (layout_ == ShardLayout::llmc) file_.append(std::as_bytes(std::span(blank)));
}

void ShardWriter::append(std::span<const TokenId> tokens) {
  for (const TokenId t : tokens)
    require(t >= 0 && t < vocab_, "data", "{}: token {} is outside the vocabulary of {}", path_.string(), t, vocab_);
  wide_ ? append_as<std::uint32_t>(file_, tokens) : append_as<std::uint16_t>(file_, tokens);
  count_ += static_cast<std::int64_t>(tokens.size());
}

void ShardWriter::finish() {
  if (layout_ == ShardLayout::llmc) {
    const std::array<std::int32_t, 4> head = {wide_ ? kMagic32 : kMagic16, wide_ ? kVersion32 : kVersion16,
                                              static_cast<std::int32_t>(count_ & 0xFFFFFFFF),
                                              static_cast<std::int32_t>(count_ >> 32)};
    file_.write_at(0, std::as_bytes(std::span(head)));
  }
  file_.commit();
}

TokenFile TokenFile::open(const fs::path& path) {
  TokenFile f;
  f.name_ = path.string();
  f.file_ = std::make_shared<const io::MappedFile>(path);
  const std::int64_t bytes = f.file_->size();
  require(bytes > 0, "data", "{}: an empty file holds no tokens", f.name_);
  std::array<std::int32_t, 4> head{};
  if (bytes >= kHeaderBytes) std::memcpy(head.data(), f.file_->data(), sizeof head);
  require(head[0] != kMagicEval, "data", "{}: a multiple-choice evaluation file of llm.c, not a token shard", f.name_);
  f.width_ = head[0] == kMagic32 ? 4 : 2;
  f.data_ = f.file_->data();
  if (head[0] != kMagic16 && head[0] != kMagic32) {
    require(bytes % 2 == 0, "data", "{}: {} bytes; expected a token shard with a header, or 16-bit tokens without one",
            f.name_, bytes);
    f.size_ = bytes / 2;
    return f;
  }
  const std::int32_t version = head[0] == kMagic32 ? kVersion32 : kVersion16;
  require(head[1] == version, "data", "{}: shard version {}, expected {}", f.name_, head[1], version);
  const std::uint64_t count = static_cast<std::uint32_t>(head[2]) | std::uint64_t{static_cast<std::uint32_t>(head[3])}
                                                                        << 32;
  const std::int64_t room = (bytes - kHeaderBytes) / f.width_;
  require(count == static_cast<std::uint64_t>(room) && (bytes - kHeaderBytes) % f.width_ == 0, "data",
          "{}: the header says {} tokens, the file holds {} bytes of them: truncated?", f.name_, count,
          bytes - kHeaderBytes);
  f.data_ += kHeaderBytes;
  f.size_ = room;
  return f;
}

TokenFile TokenFile::from_tokens(std::vector<TokenId> tokens) {
  TokenFile f;
  f.size_ = static_cast<std::int64_t>(tokens.size());
  f.memory_ = std::make_shared<const std::vector<TokenId>>(std::move(tokens));
  f.data_ = reinterpret_cast<const std::byte*>(f.memory_->data());
  return f;
}

void TokenFile::read(std::int64_t begin, std::span<TokenId> out) const {
  const auto n = static_cast<std::int64_t>(out.size());
  require(begin >= 0 && n <= size_ && begin <= size_ - n, "data",
          "{}: tokens [{}, {}) are outside the {} tokens of the file", name_, begin, begin + n, size_);
  const std::byte* from = data_ + begin * width_;
  width_ == 2 ? widen<std::uint16_t>(from, out) : widen<std::uint32_t>(from, out);
}

void TokenFile::check_below(TokenId vocab, std::int64_t begin, std::span<const TokenId> tokens) const {
  // One pass over unsigned values finds whether there is one; only then its position is searched.
  std::uint32_t largest = 0;
  for (const TokenId t : tokens) largest = std::max(largest, static_cast<std::uint32_t>(t));
  if (largest < static_cast<std::uint32_t>(vocab)) return;
  const auto bad = std::find_if(tokens.begin(), tokens.end(), [&](TokenId t) { return t < 0 || t >= vocab; });
  if (bad == tokens.end()) return;
  fail("data",
       "{}: token {} at position {} is outside the vocabulary of {}: another tokenizer made this file, or the model's "
       "vocabulary is too small",
       name_, static_cast<std::uint32_t>(*bad), begin + (bad - tokens.begin()), vocab);
}

void TokenFile::check_below(TokenId vocab) const {
  std::vector<TokenId> block;
  for (std::int64_t at = 0; at < size_; at += static_cast<std::int64_t>(block.size())) {
    block.resize(static_cast<std::size_t>(std::min<std::int64_t>(size_ - at, 1 << 16)));
    read(at, block);
    check_below(vocab, at, block);
  }
}

std::vector<TokenFile> open_token_files(std::span<const fs::path> paths, std::string_view prefix) {
  std::vector<fs::path> files;
  for (const fs::path& path : paths) {
    require(fs::exists(path), "data", "{}: no such token file or folder", path.string());
    if (!fs::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    const std::size_t before = files.size();
    for (const auto& entry : fs::directory_iterator(path)) {
      const std::string name = entry.path().filename().string();
      if (entry.is_regular_file() && name.ends_with(".bin") && name.starts_with(prefix)) files.push_back(entry.path());
    }
    std::sort(files.begin() + static_cast<std::ptrdiff_t>(before), files.end());
    require(files.size() > before, "data", "{}: no token files named {}*.bin in this folder", path.string(), prefix);
  }
  std::vector<TokenFile> out;
  for (const fs::path& file : files) out.push_back(TokenFile::open(file));
  return out;
}

}  // namespace hpcdl::data
