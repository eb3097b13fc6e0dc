#include "hpcdl/data/images/tar.h"

#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <memory>

#include "hpcdl/core/error.h"
#include "hpcdl/data/byte_stream.h"

namespace hpcdl::data {
namespace {

constexpr std::int64_t kMost = std::int64_t{1} << 30;  // of all files that are kept
constexpr std::int64_t kStep = 1 << 24;

/// The input of libarchive: decompressed here, because its own gzip reader does not check the checksum.
struct Source {
  std::unique_ptr<ByteStream> stream;
  std::string chunk = {};
  std::exception_ptr error = {};
};

la_ssize_t read_chunk(archive* a, void* client, const void** buffer) {
  auto& source = *static_cast<Source*>(client);
  source.chunk.clear();
  try {
    source.stream->read(source.chunk, 1 << 18);
  } catch (...) {  // an exception must not pass through the library, which is C
    source.error = std::current_exception();
    archive_set_error(a, EIO, "cannot read");
    return -1;
  }
  *buffer = source.chunk.data();
  return static_cast<la_ssize_t>(source.chunk.size());
}

class Tar {
 public:
  explicit Tar(const fs::path& path)
      : path_(path), source_{open_stream(path)}, archive_(archive_read_new(), &archive_read_free) {
    require(archive_ != nullptr, "data", "no memory to read an archive");
    archive_read_support_format_tar(archive_.get());
    check(archive_read_open(archive_.get(), &source_, nullptr, read_chunk, nullptr));
  }

  /// The next regular file's name; empty at the end.
  std::string next() {
    for (;;) {
      archive_entry* entry = nullptr;
      const int rc = archive_read_next_header(archive_.get(), &entry);
      if (rc == ARCHIVE_EOF) return {};
      check(rc);
      const char* name = archive_entry_pathname(entry);
      if (archive_entry_filetype(entry) != AE_IFREG || name == nullptr || *name == '\0') continue;
      size_ = archive_entry_size(entry);
      return name;
    }
  }

  std::string contents(std::int64_t most) {
    std::string all;
    for (;;) {
      const auto before = all.size();
      // The size in the header, and one byte more to see the end; in steps, because the header cannot be trusted.
      const auto step =
          static_cast<std::size_t>(std::clamp<std::int64_t>(size_ - static_cast<std::int64_t>(before), 0, kStep)) + 1;
      all.resize(before + step);
      const auto n = archive_read_data(archive_.get(), all.data() + before, step);
      check(n < 0 ? static_cast<int>(n) : ARCHIVE_OK);
      all.resize(before + static_cast<std::size_t>(n));
      if (n == 0) return all;
      require(static_cast<std::int64_t>(all.size()) <= most, "data",
              "{}: its files take more than {} bytes: not an archive of CIFAR", path_.string(), kMost);
    }
  }

  /// Reads to the end of the compressed data, after the last file.
  void drain() {
    do {
      source_.chunk.clear();
      source_.stream->read(source_.chunk, 1 << 18);
    } while (!source_.chunk.empty());
  }

 private:
  void check(int rc) const {
    if (source_.error) std::rethrow_exception(source_.error);
    if (rc == ARCHIVE_OK) return;
    const char* why = archive_error_string(archive_.get());
    fail("data", "{}: not a whole tar archive: {}: damaged or truncated? Fetch it again", path_.string(),
         why ? why : "unknown format");
  }

  fs::path path_;
  Source source_;
  std::unique_ptr<archive, decltype(&archive_read_free)> archive_;
  std::int64_t size_ = 0;  // of the file that next() named
};

}  // namespace

bool is_tar_name(const fs::path& path) { return without_compression(path).extension() == ".tar"; }

std::map<std::string, std::string> read_tar(const fs::path& path,
                                            const std::function<bool(const std::string&)>& wanted) {
  Tar tar(path);
  std::map<std::string, std::string> files;
  std::int64_t bytes = 0;
  for (std::string name = tar.next(); !name.empty(); name = tar.next()) {
    if (!wanted(name)) continue;
    auto contents = tar.contents(kMost - bytes);
    bytes += static_cast<std::int64_t>(contents.size());
    files[name] = std::move(contents);
  }
  tar.drain();
  return files;
}

}  // namespace hpcdl::data
