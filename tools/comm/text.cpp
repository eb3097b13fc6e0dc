// The output of bench comm: a table and a picture.

#include <fmt/format.h>

#include <algorithm>

#include "tools/comm/bench.h"
#include "tools/page/page.h"
#include "tools/page/svg.h"

namespace hpcdl::lab {

namespace {

std::vector<CommSide> all_sides(const std::vector<CommRow>& rows) {
  std::vector<CommSide> list;
  for (const auto& row : rows)
    for (const auto& r : row.results)
      if (std::find(list.begin(), list.end(), r.side) == list.end()) list.push_back(r.side);
  return list;
}

const CommResult* result_of(const CommRow& row, const CommSide& side) {
  for (const auto& r : row.results)
    if (r.side == side) return &r;
  return nullptr;
}

/// "3.1 us", "15.81 ms": at most four digits, without a power of ten.
std::string time(double seconds) {
  return seconds < 9.9995e-3 ? fmt::format("{:.4g} us", seconds * 1e6) : fmt::format("{:.4g} ms", seconds * 1e3);
}

}  // namespace

std::string comm_table(const std::vector<CommRow>& rows, int ranks) {
  const auto sides = all_sides(rows);
  Table table{{"bytes"}, {}};
  for (const auto& s : sides) table.columns.push_back(s.name());
  bool compared = false;
  for (const auto& row : rows) {
    auto& cells = table.rows.emplace_back();
    cells.push_back(size_text(static_cast<double>(row.what.bytes)));
    for (const auto& s : sides) {
      const auto* r = result_of(row, s);
      cells.push_back(r ? time(r->seconds.median) : "-");
      if (!r || !r->ratio) continue;
      compared = true;
      if (s.algorithm != comm::Algorithm::native) cells.back() += fmt::format(" x{:.2f}", r->ratio->median);
    }
  }
  return table_text(table) + fmt::format("{} ranks; {}\n", ranks,
                                         compared ? "x: how many times as fast as native, in the same rounds"
                                                  : "native, the reference, was not measured");
}

std::string comm_picture(const std::vector<CommRow>& rows, const std::string& title, int ranks) {
  LineChart chart{
      .x = "bytes of a rank's tensor", .y = "bus bandwidth, GB/s", .series = {}, .sizes = true, .title = title};
  for (const auto& side : all_sides(rows)) {
    Series s{.name = side.name(), .points = {}, .dashed = side.algorithm == comm::Algorithm::native};
    for (const auto& row : rows)
      if (const auto* r = result_of(row, side))
        s.points.emplace_back(static_cast<double>(row.what.bytes), r->busbw(row.what, ranks) / 1e9);
    chart.series.push_back(std::move(s));
  }
  return svg(chart);
}

}  // namespace hpcdl::lab
