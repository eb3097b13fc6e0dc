#include "hpcdl/data/prepare.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <limits>
#include <optional>

#include "hpcdl/core/error.h"
#include "hpcdl/core/unfinished.h"
#include "hpcdl/io/file.h"
#include "hpcdl/io/gguf/file.h"

namespace hpcdl::data {
namespace {

// Must be increased whenever the same text would give other files.
constexpr int kFormat = 3;

/// Describes from what a folder was made. Its name does not end like that of a text, because the cache may lie among
/// texts.
constexpr const char* kMadeFrom = "made_from";

constexpr std::int64_t kLeastTokens = 8;

/// FNV-1a, 64 bits: for a name, not for security.
std::uint64_t hash_text(std::string_view text) {
  std::uint64_t h = 0xCBF29CE484222325u;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return h;
}

/// Everything that determines the contents of the cached files.
std::string key_of(const PrepareOptions& o, const std::vector<fs::path>& files, const std::string& tokenizer) {
  std::string key =
      fmt::format("{} vocab {} val {} key {} replace {} tokenizer {:016x}\n", kFormat, tokenizer.empty() ? o.vocab : 0,
                  o.val_fraction, o.options.key, o.options.replace_invalid, hash_text(tokenizer));
  for (const fs::path& f : files) {
    std::error_code error;
    const auto size = fs::file_size(f, error);
    require(!error, "data", "{}: {}", f.string(), error.message());
    const auto time = fs::last_write_time(f, error).time_since_epoch().count();
    key += fmt::format("{} {} {}\n", fs::absolute(f).lexically_normal().string(), size, time);
  }
  return key;
}

/// The files that a given tokenizer is read from, one after the other.
std::string text_of_tokenizer(const fs::path& given) {
  if (given.empty()) return {};
  if (io::is_gguf(given)) return io::Tokenizer::load(given).to_json();  // the rest of the file are weights
  if (!fs::is_directory(given)) return io::read_file(given);
  const fs::path config = given / "tokenizer_config.json";
  return io::read_file(given / "tokenizer.json") + (fs::exists(config) ? io::read_file(config) : "");
}

/// Holds a lock file until destruction; other processes and threads wait.
class FileLock {
 public:
  explicit FileLock(const fs::path& path) : fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    if (fd_.get() < 0) io::fail_file(path, "create", errno);
    while (::flock(fd_.get(), LOCK_EX) != 0)
      // On a file system without locks, two processes may do the work twice, and the rename decides which result is
      // kept.
      if (errno != EINTR) break;
  }

 private:
  io::Fd fd_;
};

/// Where validation begins: the first document after the requested position, if it begins in the first half of the rest
/// by.
std::int64_t split_at(const TokenFile& all, double fraction, std::optional<TokenId> separator) {
  const std::int64_t n = all.size();
  if (fraction == 0) return n;
  const auto val =
      std::max<std::int64_t>(static_cast<std::int64_t>(std::llround(static_cast<double>(n) * fraction)), 2);
  const std::int64_t at = n - val;
  std::vector<TokenId> near(static_cast<std::size_t>(std::min<std::int64_t>(val / 2, 1 << 22)));
  all.read(at, near);
  const auto found = separator ? std::find(near.begin(), near.end(), *separator) : near.end();
  return found == near.end() ? at : at + (found - near.begin());
}

void copy_tokens(const TokenFile& from, std::int64_t begin, std::int64_t end, const fs::path& to, TokenId vocab) {
  ShardWriter out(to, ShardLayout::llmc, vocab);
  std::vector<TokenId> block;
  for (; begin < end; begin += static_cast<std::int64_t>(block.size())) {
    block.resize(static_cast<std::size_t>(std::min<std::int64_t>(end - begin, 1 << 20)));
    from.read(begin, block);
    out.append(block);
  }
  out.finish();
}

void make(const PrepareOptions& o, const std::vector<fs::path>& files, const std::string& key, const fs::path& folder,
          Pool& pool, const OnProgress& progress) {
  const io::Tokenizer tokenizer = o.tokenizer.empty() ? train_tokenizer(files, o.options, o.vocab, pool, progress)
                                                      : io::Tokenizer::load(o.tokenizer);
  // Not only tokenizer.json, which does not say which token ends a text; for any context.
  tokenizer.save_folder(folder, std::numeric_limits<int>::max());
  const fs::path all_path = folder / "all.bin";
  write_shard(files, o.options, tokenizer, pool, all_path, ShardLayout::llmc, progress);
  const TokenFile all = TokenFile::open(all_path);
  require(all.size() >= kLeastTokens, "data",
          "{}: {} tokens are too few to train and validate on; expected at least {}: give more text", files[0].string(),
          all.size(), kLeastTokens);
  const std::int64_t split = split_at(all, o.val_fraction, tokenizer.end_of_text());
  copy_tokens(all, 0, split, folder / "train.bin", tokenizer.vocab_size());
  copy_tokens(all, split, all.size(), folder / "val.bin", tokenizer.vocab_size());
  fs::remove(all_path);
  io::write_file_atomic(folder / kMadeFrom, key);
}

}  // namespace

PreparedText prepare_text(const PrepareOptions& o, Pool& pool, const OnProgress& progress) {
  require(o.val_fraction >= 0 && o.val_fraction <= 0.9, "data", "expected a validation share from 0 to 0.9, found {}",
          o.val_fraction);
  const std::vector<fs::path> files = resolve_text_files(o.text, o.not_text);
  const std::string key = key_of(o, files, text_of_tokenizer(o.tokenizer));
  const std::string name = fmt::format("text-{:016x}", hash_text(key));
  const fs::path folder = o.cache / name;
  io::make_folder(o.cache);
  const FileLock lock(o.cache / fmt::format(".{}.lock", name));
  const bool cached = fs::exists(folder / kMadeFrom) && io::read_file(folder / kMadeFrom) == key;
  if (!cached) {
    const fs::path aside = o.cache / fmt::format(".{}.{}", name, ::getpid());
    fs::remove_all(aside);
    Unfinished unfinished(aside);
    io::make_folder(aside);
    unfinished.created();
    try {
      make(o, files, key, aside, pool, progress);
      std::error_code ignored;
      fs::remove_all(folder, ignored);
      unfinished.finishing();
      io::rename_durably(aside, folder);
    } catch (...) {
      std::error_code ignored;
      fs::remove_all(aside, ignored);
      throw;
    }
  }
  PreparedText p{.tokenizer = io::Tokenizer::load(folder),
                 .folder = folder,
                 .train = folder / "train.bin",
                 .val = folder / "val.bin",
                 .cached = cached};
  p.train_tokens = TokenFile::open(p.train).size();
  p.val_tokens = TokenFile::open(p.val).size();
  return p;
}

}  // namespace hpcdl::data
