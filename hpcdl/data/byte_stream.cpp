#include "hpcdl/data/byte_stream.h"

#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/io/file.h"

namespace hpcdl::data {
namespace {

/// Calls read(2) until `bytes` have been read or the file ends.
std::size_t read_fully(const io::Fd& fd, const fs::path& path, char* to, std::size_t bytes) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t n = ::read(fd.get(), to + done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) io::fail_file(path, "read", errno);
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  return done;
}

class PlainStream : public ByteStream {
 public:
  explicit PlainStream(const fs::path& path) : path_(path), fd_(io::open_for_reading(path)) {}
  void read(std::string& out, std::size_t bytes) override {
    const std::size_t before = out.size();
    out.resize(before + bytes);
    const std::size_t n = read_fully(fd_, path_, out.data() + before, bytes);
    out.resize(before + n);
    position_ += static_cast<std::int64_t>(n);
  }
  std::int64_t position() const override { return position_; }

 private:
  fs::path path_;
  io::Fd fd_;
  std::int64_t position_ = 0;
};

/// The common part of both decompressors: a window of compressed bytes, refilled when it is empty.
class CompressedStream : public ByteStream {
 public:
  explicit CompressedStream(const fs::path& path) : path_(path), fd_(io::open_for_reading(path)), window_(1 << 18) {}
  std::int64_t position() const override { return position_; }

  void read(std::string& out, std::size_t bytes) override {
    const std::size_t before = out.size();
    out.resize(before + bytes);
    std::size_t done = 0;
    while (done < bytes && !finished_) {
      if (at_ == end_ && !holding_ && !refill()) {
        require(at_boundary(), "data", "{}: the compressed data end too early: truncated download?", path_.string());
        finished_ = true;
        break;
      }
      // A decompressor that filled its output may hold more output, even if its input is empty.
      const std::size_t room = bytes - done,
                        n = at_boundary() && at_ == end_ ? 0 : decompress(out.data() + before + done, room);
      holding_ = n == room;
      done += n;
    }
    out.resize(before + done);
  }

 protected:
  /// Consumes window_[at_, end_) and returns the bytes it wrote.
  virtual std::size_t decompress(char* to, std::size_t room) = 0;
  /// True between two frames: the file may end here.
  virtual bool at_boundary() const = 0;
  [[noreturn]] void damaged(const char* why) const {
    fail("data", "{}: cannot decompress: {}", path_.string(), why ? why : "damaged data");
  }
  char* input() { return window_.data() + at_; }
  std::size_t input_size() const { return end_ - at_; }
  void consume(std::size_t n) { at_ += n; }

 private:
  bool refill() {
    at_ = 0;
    end_ = read_fully(fd_, path_, window_.data(), window_.size());
    position_ += static_cast<std::int64_t>(end_);
    return end_ > 0;
  }

  fs::path path_;
  io::Fd fd_;
  std::vector<char> window_;
  std::size_t at_ = 0, end_ = 0;
  std::int64_t position_ = 0;
  bool finished_ = false, holding_ = false;
};

class GzStream : public CompressedStream {
 public:
  explicit GzStream(const fs::path& path) : CompressedStream(path) {
    constexpr int kGzipOnly = 16;
    require(inflateInit2(&z_, 15 + kGzipOnly) == Z_OK, "data", "no memory to decompress");
  }
  ~GzStream() override { inflateEnd(&z_); }

 protected:
  std::size_t decompress(char* to, std::size_t room) override {
    // A gzip file may have several members, and end in zeros that fill a block.
    if (ended_) {
      while (input_size() > 0 && *input() == 0) consume(1);
      if (input_size() == 0) return 0;
      inflateReset(&z_);
    }
    ended_ = false;
    constexpr std::size_t kMost = 1 << 30;
    z_.next_in = reinterpret_cast<Bytef*>(input());
    z_.avail_in = static_cast<uInt>(input_size());
    z_.next_out = reinterpret_cast<Bytef*>(to);
    z_.avail_out = static_cast<uInt>(std::min(room, kMost));
    const uInt offered = z_.avail_out;
    const int rc = inflate(&z_, Z_NO_FLUSH);
    if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR) damaged(z_.msg);
    consume(input_size() - z_.avail_in);
    ended_ = rc == Z_STREAM_END;
    return offered - z_.avail_out;
  }
  bool at_boundary() const override { return ended_; }

 private:
  z_stream z_{};
  bool ended_ = false;
};

class ZstdStream : public CompressedStream {
 public:
  explicit ZstdStream(const fs::path& path) : CompressedStream(path), z_(ZSTD_createDStream(), &ZSTD_freeDStream) {
    require(z_ != nullptr, "data", "no memory to decompress");
  }

 protected:
  std::size_t decompress(char* to, std::size_t room) override {
    ZSTD_inBuffer in{input(), input_size(), 0};
    ZSTD_outBuffer out{to, room, 0};
    const std::size_t hint = ZSTD_decompressStream(z_.get(), &out, &in);
    if (ZSTD_isError(hint)) damaged(ZSTD_getErrorName(hint));
    consume(in.pos);
    ended_ = hint == 0;
    return out.pos;
  }
  bool at_boundary() const override { return ended_; }

 private:
  std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> z_;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<ByteStream> open_stream(const fs::path& path) {
  if (path.extension() == ".gz") return std::make_unique<GzStream>(path);
  if (path.extension() == ".zst") return std::make_unique<ZstdStream>(path);
  return std::make_unique<PlainStream>(path);
}

fs::path without_compression(const fs::path& path) {
  return path.extension() == ".gz" || path.extension() == ".zst" ? path.stem() : path.filename();
}

}  // namespace hpcdl::data
