#include "hpcdl/graph/streams.h"

#include <algorithm>
#include <cstdint>

namespace hpcdl {
namespace {

/// Bytes that an operand touches, including those between its rows.
struct Range {
  std::uintptr_t begin, end;
  bool written;
};

std::vector<Range> ranges_of(const Record& r, const Program& program, std::span<const Grad> operands) {
  std::vector<Range> list;
  for (std::uint32_t k = r.operands; k < r.operands + r.operand_count; ++k) {
    const auto& t = operands[k];
    if (program.operands[k].slot < 0 || t.size() == 0) continue;
    std::int64_t last = 0;
    for (int d = 0; d < t.rank(); ++d) last += (t[d] - 1) * t.strides()[d];
    const auto begin = reinterpret_cast<std::uintptr_t>(t.data());
    list.push_back({begin, begin + static_cast<std::uintptr_t>((last + 1) * dtype_bytes(t.dtype())),
                    program.operands[k].access != Access::read});
  }
  return list;
}

bool conflict(const std::vector<Range>& a, const std::vector<Range>& b) {
  return std::any_of(a.begin(), a.end(), [&](const Range& x) {
    return std::any_of(b.begin(), b.end(),
                       [&](const Range& y) { return (x.written || y.written) && x.begin < y.end && y.begin < x.end; });
  });
}

}  // namespace

StreamDependencies stream_dependencies(const Program& program, std::span<const Grad> operands) {
  const auto& records = program.records;
  StreamDependencies c;
  c.waits.resize(records.size());
  c.signals.assign(records.size(), 0);
  for (const auto& r : records) c.streams = std::max(c.streams, r.stream + 1);
  if (c.streams == 1) return c;
  c.last.assign(static_cast<std::size_t>(c.streams) - 1, -1);
  std::vector<std::vector<Range>> ranges;
  for (const auto& r : records) ranges.push_back(ranges_of(r, program, operands));
  // The last record of stream t for which stream s has waited: up to there no other event is needed.
  std::vector<std::vector<int>> known(static_cast<std::size_t>(c.streams),
                                      std::vector<int>(static_cast<std::size_t>(c.streams), -1));
  for (std::size_t i = 0; i < records.size(); ++i) {
    const auto mine = records[i].stream;
    std::vector<char> settled(static_cast<std::size_t>(c.streams));
    settled[mine] = 1;
    for (std::size_t j = i; j-- > 0;) {
      const auto theirs = records[j].stream;
      if (settled[theirs]) continue;
      if (static_cast<int>(j) <= known[mine][theirs]) {
        settled[theirs] = 1;
      } else if (conflict(ranges[i], ranges[j])) {
        settled[theirs] = 1;
        known[mine][theirs] = static_cast<int>(j);
        c.waits[i].push_back(static_cast<int>(j));
        c.signals[j] = 1;
      }
    }
    if (mine > 0) c.last[static_cast<std::size_t>(mine) - 1] = static_cast<int>(i);
  }
  for (int record : c.last)
    if (record >= 0) c.signals[static_cast<std::size_t>(record)] = 1;
  return c;
}

}  // namespace hpcdl
