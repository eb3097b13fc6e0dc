#include "hpcdl/io/file_block.h"

#include <algorithm>
#include <tuple>

#include "hpcdl/core/error.h"

namespace hpcdl::io {

void FileBlock::add(std::size_t file, std::int64_t offset, std::int64_t bytes) {
  constexpr auto kAlign = DirectFile::kAlign;
  if (bytes == 0) return;
  ranges_.push_back({file, offset / kAlign * kAlign, (offset + bytes + kAlign - 1) / kAlign * kAlign, 0});
}

void FileBlock::close() {
  std::ranges::sort(ranges_, {}, [](const Range& r) { return std::tuple(r.file, r.begin); });
  std::vector<Range> joined;
  for (const auto& r : ranges_)
    if (!joined.empty() && joined.back().file == r.file && r.begin <= joined.back().end)
      joined.back().end = std::max(joined.back().end, r.end);
    else joined.push_back(r);
  bytes_ = 0;
  for (auto& r : joined) r.at = bytes_, bytes_ += r.end - r.begin;
  ranges_ = std::move(joined);
}

std::int64_t FileBlock::position(std::size_t file, std::int64_t offset) const {
  for (const auto& r : ranges_)
    if (r.file == file && r.begin <= offset && offset < r.end) return r.at + offset - r.begin;
  fail("io", "byte {} of file {} is not in this block", offset, file);
}

std::vector<FilePiece> FileBlock::pieces(std::span<const DirectFile> files, std::byte* to) const {
  std::vector<FilePiece> list;
  for (const auto& r : ranges_)
    list.push_back({.file = &files[r.file], .offset = r.begin, .bytes = r.end - r.begin, .memory = to + r.at});
  return list;
}

}  // namespace hpcdl::io
