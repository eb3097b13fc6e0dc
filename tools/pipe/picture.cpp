// The timeline of a schedule as a picture.

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tools/page/svg.h"
#include "tools/pipe/report.h"

namespace hpcdl::lab::pipe {
namespace {

constexpr double kWidth = 1200, kLeft = 92, kRight = 24, kTop = 84, kRow = 34, kBar = 26, kBottom = 74;
constexpr double kLetter = 7.2;           // the mean width of a letter of a label
constexpr std::size_t kMostArrows = 600;  // more would hide the bars

std::string_view colour_of(engine::Act act) {
  switch (act) {
    case engine::Act::forward: return "a";
    case engine::Act::weight_gradient: return "b";
    case engine::Act::lookup:
    case engine::Act::logits:
    case engine::Act::loss:
    case engine::Act::lookup_gradient: return "c";
    default: return "good";
  }
}

class Picture {
 public:
  explicit Picture(const Report& r)
      : r_(r),
        simulation_(r.best.simulation),
        height_(kTop + kRow * static_cast<double>(r.schedule.of_rank.size()) + kBottom),
        scale_((kWidth - kLeft - kRight) / simulation_.makespan) {}

  std::string draw() {
    out_ = svg_begin(kWidth, height_, headline(r_));
    out_ +=
        "<style>svg .cell{font-size:11.5px;fill:#fff;font-weight:600}svg .arrow{stroke-width:1;opacity:.45}</style>\n";
    out_ += svg_text(kLeft, 34, "start", headline(r_), "title");
    out_ += svg_text(
        kLeft, 58, "start",
        fmt::format("makespan {}, bubble {:.1f} %", time_text(r_, simulation_.makespan), 100 * simulation_.bubble),
        "tick");
    axis();
    for (std::size_t rank = 0; rank < r_.schedule.of_rank.size(); ++rank) row(rank);
    arrows();
    legend();
    return out_ + "</svg>\n";
  }

 private:
  double x(double time) const { return kLeft + scale_ * time; }
  double y(std::size_t rank) const { return kTop + kRow * static_cast<double>(rank); }

  void axis() {
    const double bottom = y(r_.schedule.of_rank.size());
    const double step = tick_step(simulation_.makespan, 10);
    for (int i = 0; i * step <= simulation_.makespan * (1 + 1e-9); ++i) {
      const double time = i * step;
      out_ += svg_line(x(time), kTop - 4, x(time), bottom, "class=\"grid\"");
      out_ += svg_text(x(time), bottom + 16, "middle", r_.costs ? time_text(r_, time) : fmt::format("{:.6g}", time));
    }
  }

  void row(std::size_t rank) {
    const double middle = y(rank) + kBar / 2 + 4;
    const auto& use = simulation_.ranks[rank];
    out_ += svg_text(kLeft - 10, middle - 5, "end", fmt::format("rank {}", rank), "name");
    out_ += svg_text(kLeft - 10, middle + 8, "end", fmt::format("idle {:.0f} %", 100 * use.idle / simulation_.makespan),
                     "tick", " style=\"font-size:10.5px\"");
    const auto& list = r_.schedule.of_rank[rank];
    for (std::size_t i = 0; i < list.size(); ++i) {
      const auto& span = simulation_.spans[rank][i];
      if (engine::occupies(list[i].act) && span.end > span.begin) bar(rank, list[i], span);
    }
  }

  /// Later chunks are paler.
  double opacity(std::size_t rank, const engine::Action& a) const {
    if (engine::of_vocabulary(a.act)) return a.act == engine::Act::loss ? 0.8 : 1;
    const auto& by_rank = a.act == engine::Act::forward ? r_.schedule.forward_rank : r_.schedule.backward_rank;
    int before = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(a.stage); ++i) before += by_rank[i] == static_cast<int>(rank);
    return std::max(0.5, 1 - 0.25 * before);
  }

  void bar(std::size_t rank, const engine::Action& a, const engine::Span& span) {
    const double width = scale_ * (span.end - span.begin), gap = width > 4 ? 1 : 0;
    const auto label = cell_label(r_.schedule, rank, a);
    out_ += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" rx=\"2\" class=\"fill-{}\" opacity=\"{:.2f}\">"
        "<title>{}: {} to {}</title></rect>\n",
        x(span.begin) + gap / 2, y(rank), width - gap, kBar, colour_of(a.act), opacity(rank, a),
        escaped(engine::text(a)), time_text(r_, span.begin), time_text(r_, span.end));
    const auto number = label.substr(1);  // the colour tells the act
    if (width > kLetter * static_cast<double>(number.size()) + 3)
      out_ += svg_text(x(span.begin) + width / 2, y(rank) + kBar / 2 + 4, "middle", number, "cell");
  }

  /// Transfers that take time, from the end of one rank's action to where they arrive.
  void arrows() {
    std::string lines;
    std::size_t count = 0;
    for (std::size_t rank = 0; rank < r_.schedule.of_rank.size(); ++rank)
      for (std::size_t i = 0; i < r_.schedule.of_rank[rank].size(); ++i) {
        const auto& a = r_.schedule.of_rank[rank][i];
        const auto& span = simulation_.spans[rank][i];
        if (a.act != engine::Act::send || span.end <= span.begin) continue;
        const engine::Action other{.act = engine::Act::receive, .stage = a.peer, .peer = a.stage};
        const auto to = static_cast<std::size_t>(r_.schedule.rank_of(other));
        const bool down = to > rank;
        lines += svg_line(x(span.begin), y(rank) + (down ? kBar : 0), x(span.end), y(to) + (down ? 0 : kBar),
                          "class=\"arrow stroke-soft\"");
        ++count;
      }
    if (count <= kMostArrows) out_ += lines;
  }

  void legend() {
    const double bottom = height_ - 22;
    struct Entry {
      std::string_view colour;
      std::string words;
    };
    std::vector<Entry> entries = {{"a", "forward"}};
    const auto any = [&](engine::Act act) {
      for (const auto& list : r_.schedule.of_rank)
        for (const auto& a : list)
          if (a.act == act) return true;
      return false;
    };
    if (any(engine::Act::backward)) entries.push_back({"good", "backward"});
    if (any(engine::Act::input_gradient)) entries.push_back({"good", "gradient of the input"});
    if (any(engine::Act::logits)) entries.push_back({"c", "a share of the vocabulary"});
    if (any(engine::Act::weight_gradient)) entries.push_back({"b", "gradient of the weights"});
    double at = kLeft;
    for (const auto& e : entries) {
      out_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"11\" height=\"11\" rx=\"3\" class=\"fill-{}\"/>\n",
                          at, bottom - 10, e.colour);
      out_ += svg_text(at + 16, bottom, "start", e.words);
      at += 38 + 6.8 * static_cast<double>(e.words.size());
    }
    const bool letters = r_.schedule.stages() > r_.schedule.ranks();
    out_ += svg_text(at, bottom, "start",
                     letters ? "the number of a micro-batch, and a letter for the stage of the rank"
                             : "with the number of the micro-batch",
                     "tick");
  }

  const Report& r_;
  const engine::Simulation& simulation_;
  double height_, scale_;
  std::string out_;
};

}  // namespace

std::string to_svg(const Report& report) { return report.deadlock.empty() ? Picture(report).draw() : std::string(); }

}  // namespace hpcdl::lab::pipe
