#include <zlib.h>

#include <algorithm>

#include "hpcdl/core/error.h"
#include "hpcdl/data/byte_stream.h"
#include "hpcdl/io/atomic_file.h"
#include "tools/profile/trace.h"

namespace hpcdl::lab {

namespace {

std::string gzip(const std::string& text) {
  constexpr int kGzipHeader = 16;
  z_stream z{};
  require(deflateInit2(&z, Z_DEFAULT_COMPRESSION, Z_DEFLATED, MAX_WBITS + kGzipHeader, 8, Z_DEFAULT_STRATEGY) == Z_OK,
          "trace", "no memory to compress with");
  std::string out;
  std::size_t read = 0;
  char block[1 << 16];
  do {
    if (z.avail_in == 0) {
      const auto n = std::min<std::size_t>(text.size() - read, 1 << 20);
      z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data() + read));
      z.avail_in = static_cast<uInt>(n);
      read += n;
    }
    z.next_out = reinterpret_cast<Bytef*>(block);
    z.avail_out = sizeof block;
    if (deflate(&z, read == text.size() ? Z_FINISH : Z_NO_FLUSH) == Z_STREAM_END) read = text.size() + 1;
    out.append(block, sizeof block - z.avail_out);
  } while (read <= text.size());
  deflateEnd(&z);
  return out;
}

}  // namespace

void write_trace(const std::filesystem::path& path, const std::string& json) {
  io::write_file_atomic(path, path.extension() == ".gz" ? gzip(json) : json);
}

std::string read_trace(const std::filesystem::path& path) {
  constexpr std::size_t kLimit = std::size_t{2} << 30;
  const auto stream = data::open_stream(path);
  std::string text;
  for (std::size_t before = 1; before != text.size();) {
    before = text.size();
    stream->read(text, 1 << 20);
    require(text.size() <= kLimit, "trace", "{}: more than 2 GiB of text", path.string());
  }
  return text;
}

}  // namespace hpcdl::lab
