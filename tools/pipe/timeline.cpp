// The timeline of a schedule as text.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "tools/pipe/report.h"

namespace hpcdl::lab::pipe {
namespace {

constexpr double kMostColumns = 4000;

struct Cell {
  std::size_t begin = 0, end = 0;  // columns
  std::string label;
  engine::Act act = engine::Act::forward;
};

/// The compute actions of every rank, in columns.
std::vector<std::vector<Cell>> cells_of(const Report& r) {
  const auto& s = r.schedule;
  const auto& simulation = r.best.simulation;
  double shortest = simulation.makespan;
  std::size_t widest = 0;
  std::vector<std::vector<Cell>> rows(s.of_rank.size());
  for (std::size_t rank = 0; rank < rows.size(); ++rank)
    for (std::size_t i = 0; i < s.of_rank[rank].size(); ++i) {
      const auto& a = s.of_rank[rank][i];
      const auto& span = simulation.spans[rank][i];
      if (!engine::occupies(a.act) || span.end <= span.begin) continue;
      shortest = std::min(shortest, span.end - span.begin);
      widest =
          std::max(widest, rows[rank].emplace_back(Cell{.label = cell_label(s, rank, a), .act = a.act}).label.size());
    }
  const double scale = std::min((static_cast<double>(widest) + 1) / shortest, kMostColumns / simulation.makespan);
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    auto cell = rows[rank].begin();
    for (std::size_t i = 0; i < s.of_rank[rank].size(); ++i) {
      const auto& span = simulation.spans[rank][i];
      if (!engine::occupies(s.of_rank[rank][i].act) || span.end <= span.begin) continue;
      cell->begin = static_cast<std::size_t>(std::lround(scale * span.begin));
      cell->end = static_cast<std::size_t>(std::lround(scale * span.end));
      ++cell;
    }
  }
  return rows;
}

/// The characters of a rank, and the act of each ('.' where it waits).
struct Line {
  std::string text, act;
};

Line line_of(const std::vector<Cell>& cells, std::size_t columns) {
  Line line{std::string(columns, '.'), std::string(columns, '.')};
  for (const auto& c : cells)
    for (std::size_t at = c.begin; at < c.end; ++at) {
      const bool fits = c.end - c.begin > c.label.size();
      line.text[at] = fits && at - c.begin < c.label.size() ? c.label[at - c.begin] : at + 1 == c.end ? ' ' : '-';
      line.act[at] = engine::act_letter(c.act);
    }
  return line;
}

std::string coloured(const Line& line, std::size_t from, std::size_t count) {
  std::string out;
  char now = '.';
  for (std::size_t at = from; at < std::min(from + count, line.text.size()); ++at) {
    if (line.act[at] != now) {
      now = line.act[at];
      out += now == 'F'                ? "\x1b[34m"
             : now == 'W'              ? "\x1b[33m"
             : now == '.'              ? "\x1b[0m"
             : now > 'B' && now != 'I' ? "\x1b[35m"
                                       : "\x1b[32m";
    }
    out += line.text[at];
  }
  return now == '.' ? out : out + "\x1b[0m";
}

}  // namespace

std::string timeline_text(const Report& r, std::size_t columns, bool colour) {
  if (!r.deadlock.empty()) return {};
  const auto rows = cells_of(r);
  std::size_t width = 0;
  for (const auto& row : rows)
    if (!row.empty()) width = std::max(width, row.back().end);
  const auto name = [&](std::size_t rank) {
    return fmt::format("rank {:<{}}  ", rank, std::to_string(rows.size() - 1).size());
  };
  const std::size_t part = std::max<std::size_t>(columns, 40) - name(0).size();
  std::string text;
  for (std::size_t from = 0; from < width; from += part) {
    if (from > 0) text += '\n';
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
      const auto line = line_of(rows[rank], width);
      text += name(rank) + (colour ? coloured(line, from, part) : line.text.substr(from, part)) + '\n';
    }
  }
  if (r.schedule.divides_vocabulary())
    text +=
        "E looks up, V logits, T the loss and its gradients, D gradients of rows: of a rank's share of the "
        "vocabulary\n";
  return text +
         "F forward, B backward, I and W its halves (gradients of the input and of the weights), with the "
         "micro-batch"
         "; . waits\n";
}

}  // namespace hpcdl::lab::pipe
