// Layout: APPNOTE.TXT of PKWARE, sections 4.3 and 4.5.3. All numbers are little-endian.

#include "hpcdl/io/dcp/zip.h"

#include <algorithm>
#include <cstdint>

#include "hpcdl/core/error.h"
#include "hpcdl/io/json.h"

namespace hpcdl::io::dcp {
namespace {

constexpr std::size_t kEndBytes = 22, kLocatorBytes = 20, kEnd64Bytes = 56, kEntryBytes = 46, kLocalBytes = 30;
constexpr std::uint64_t kMostComment = 0xffff, kMostFiles = std::uint64_t{1} << 20;
constexpr std::uint64_t kSee64 = 0xffffffff;  // the 64-bit number is in the extra field

class Archive {
 public:
  Archive(std::string_view bytes, const std::string& from) : bytes_(bytes), from_(from) {}

  std::vector<ZipFile> files() {
    const auto [count, offset, size] = directory();
    auto rest = part(offset, size, "its directory");
    if (count > std::min<std::uint64_t>(kMostFiles, rest.size() / kEntryBytes))
      refuse(fmt::format("{} files are more than its directory can hold", count));
    std::vector<ZipFile> list;
    for (std::uint64_t i = 0; i < count; ++i) list.push_back(next(rest));
    return list;
  }

 private:
  struct Directory {
    std::uint64_t count, offset, size;
  };

  [[noreturn]] void refuse(const std::string& why) const {
    fail("io", "{}: not an archive of torch.save: {}", from_, why);
  }

  static std::uint64_t number(std::string_view in, std::size_t at, int bytes) {
    std::uint64_t v = 0;
    for (int i = bytes; i-- > 0;) v = v << 8 | static_cast<unsigned char>(in[at + static_cast<std::size_t>(i)]);
    return v;
  }
  std::string_view part(std::uint64_t offset, std::uint64_t size, std::string_view what) const {
    if (offset > bytes_.size() || size > bytes_.size() - offset)
      refuse(fmt::format("{} lies outside of its {} bytes: truncated?", what, bytes_.size()));
    return bytes_.substr(offset, size);
  }

  /// The end record is the last one, before a comment.
  Directory directory() const {
    const auto last =
        bytes_.size() < kEndBytes ? std::string_view::npos : bytes_.rfind("PK\5\6", bytes_.size() - kEndBytes);
    if (last == std::string_view::npos || bytes_.size() - kEndBytes - last > kMostComment)
      refuse("it has no end record: truncated?");
    const auto end = bytes_.substr(last, kEndBytes);
    Directory d{number(end, 10, 2), number(end, 16, 4), number(end, 12, 4)};
    if (number(end, 4, 2) != 0 && number(end, 4, 2) != 0xffff) refuse("it is one of several disks");
    if (last < kLocatorBytes || !bytes_.substr(last - kLocatorBytes).starts_with("PK\6\7")) return d;
    const auto end64 = part(number(bytes_, last - kLocatorBytes + 8, 8), kEnd64Bytes, "its 64-bit end record");
    if (!end64.starts_with("PK\6\6")) refuse("its 64-bit end record is damaged");
    return {number(end64, 32, 8), number(end64, 48, 8), number(end64, 40, 8)};
  }

  /// Takes the first entry off the directory.
  ZipFile next(std::string_view& rest) const {
    if (rest.size() < kEntryBytes || !rest.starts_with("PK\1\2")) refuse("its directory is damaged");
    const auto name_bytes = number(rest, 28, 2), extra_bytes = number(rest, 30, 2), comment = number(rest, 32, 2);
    const auto whole = kEntryBytes + name_bytes + extra_bytes + comment;
    if (whole > rest.size()) refuse("its directory ends within an entry");
    const auto name = rest.substr(kEntryBytes, name_bytes);
    auto extra = rest.substr(kEntryBytes + name_bytes, extra_bytes);
    std::uint64_t packed = number(rest, 20, 4), size = number(rest, 24, 4), offset = number(rest, 42, 4);
    extra = extra_of_64(extra, name);
    for (auto* n : {&size, &packed, &offset}) {
      if (*n != kSee64) continue;
      if (extra.size() < 8) refuse(fmt::format("the size of file {} is missing", shown(name)));
      *n = number(extra, 0, 8);
      extra.remove_prefix(8);
    }
    if (number(rest, 8, 2) & 1) refuse(fmt::format("file {} is encrypted", shown(name)));
    if (number(rest, 10, 2) != 0 || packed != size) refuse(fmt::format("file {} is compressed", shown(name)));
    rest.remove_prefix(whole);
    const auto local = part(offset, kLocalBytes, "the header of a file");
    if (!local.starts_with("PK\3\4")) refuse(fmt::format("the header of file {} is damaged", shown(name)));
    const auto data = offset + kLocalBytes + number(local, 26, 2) + number(local, 28, 2);
    return {name, part(data, size, "file " + shown(name))};
  }

  /// The 64-bit field among the extra fields; empty if there is none.
  std::string_view extra_of_64(std::string_view extra, std::string_view name) const {
    while (extra.size() >= 4) {
      const auto id = number(extra, 0, 2), bytes = number(extra, 2, 2);
      if (bytes > extra.size() - 4) refuse(fmt::format("the extra fields of file {} are damaged", shown(name)));
      if (id == 1) return extra.substr(4, bytes);
      extra.remove_prefix(4 + bytes);
    }
    return {};
  }

  std::string_view bytes_;
  const std::string& from_;
};

}  // namespace

std::vector<ZipFile> read_zip(std::string_view archive, const std::string& from) {
  return Archive(archive, from).files();
}

}  // namespace hpcdl::io::dcp
