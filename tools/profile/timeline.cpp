// One step as a picture: rows of stages, layers and records over time, and the planned memory below them.

#include <fmt/format.h>

#include <algorithm>

#include "hpcdl/core/units.h"
#include "tools/page/svg.h"
#include "tools/profile/report.h"

namespace hpcdl::lab {

namespace {

constexpr double kWidth = 1160, kLeft = 74, kRight = 10, kHalfTick = 26;  // of the longest words below the axis
constexpr double kStages = 8, kLayers = 40, kRecords = 72, kRecordHeight = 64, kMemory = 156, kMemoryHeight = 92,
                 kAxis = 252, kHeight = 276;

constexpr const char* kStyle =
    "<style>.row{fill:var(--soft)}.in{fill:#fff;font-size:11px;text-anchor:middle;pointer-events:none}"
    ".stage,.area{fill:var(--quiet)}rect.stage+.in{fill:var(--ink)}.forward{fill:var(--a)}.backward{fill:var(--b)}"
    ".update{fill:var(--good)}.recompute{fill:var(--c)}.faint{opacity:.28}.still{pointer-events:none}</style>";

const StepTrace* middle_step(const Profile& profile) {
  std::vector<const StepTrace*> list;
  for (const auto& s : profile.steps)
    if (s.recorded) list.push_back(&s);
  if (list.empty()) return nullptr;
  std::sort(list.begin(), list.end(),
            [](const StepTrace* a, const StepTrace* b) { return a->end - a->begin < b->end - b->begin; });
  return list[list.size() / 2];
}

class Timeline {
 public:
  Timeline(const Profile& profile, const Roofs& roofs, const StepTrace& step)
      : profile_(profile), roofs_(roofs), step_(step) {}

  std::string draw() {
    svg_ = svg_begin(kWidth, kHeight, "one training step over time") + kStyle;
    axis();
    for (const auto& [y, name] : {std::pair(kStages + 15, "stages"), std::pair(kLayers + 15, "layers"),
                                  std::pair(kRecords + 36, "records"), std::pair(kMemory + 14, "memory")})
      svg_ += fmt::format("<text class=\"row\" x=\"{}\" y=\"{}\">{}</text>", 0, y, name);
    for (const auto& s : step_.stages)
      box(kStages, 22, s.begin, s.end, "stage", std::string(stage_name(s.stage)),
          fmt::format("{}: {}", stage_name(s.stage), ms(s.begin, s.end)));
    for (const auto& r : step_.runs) layers(r), records(r);
    memory();
    return svg_ + "</svg>";
  }

 private:
  double x(std::int64_t t) const {
    return kLeft + (kWidth - kLeft - kRight) * static_cast<double>(t - step_.begin) /
                       static_cast<double>(step_.end - step_.begin);
  }
  static std::string ms(std::int64_t begin, std::int64_t end) {
    return fmt::format("{:.3f} ms", static_cast<double>(end - begin) * 1e-6);
  }

  /// A box that contains its name if there is room.
  void box(double y, double height, std::int64_t begin, std::int64_t end, std::string_view kind,
           const std::string& name, const std::string& tip) {
    const double left = x(begin), width = std::max(x(end) - left, 0.4);
    svg_ += fmt::format(
        "<g><title>{}</title><rect class=\"{}\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" rx=\"{}\"/>",
        escaped(tip), kind, left, y, width, height, width > 8 ? 3 : 0);
    constexpr double kLetter = 6.3;
    if (static_cast<double>(name.size()) * kLetter + 8 < width)
      svg_ += fmt::format("<text class=\"in\" x=\"{:.2f}\" y=\"{}\">{}</text>", left + width / 2, y + height / 2 + 4,
                          escaped(name));
    svg_ += "</g>";
  }

  void layers(const ProgramRun& run) {
    const auto& program = profile_.programs[static_cast<std::size_t>(run.program)].program;
    for (const auto& [layer, phase, begin, end] : layer_spans(program, run))
      box(kLayers, 22, begin, end, phase_name(phase), short_name(layer),
          fmt::format("{} {}: {}", layer, phase_name(phase), ms(begin, end)));
  }
  static std::string short_name(const std::string& layer) {
    return layer.starts_with("layers.") ? layer.substr(7) : layer;
  }

  /// Filled from the bottom up to the share of the roof.
  void records(const ProgramRun& run) {
    const auto& facts = profile_.programs[static_cast<std::size_t>(run.program)];
    for (std::size_t i = 0; i < run.times.size(); ++i) {
      const auto& r = facts.program.records[i];
      const auto [begin, end] = run.times[i];
      const Light light = light_of(facts, r, roofs_);
      const double share = end > begin ? std::min(1.0, light.seconds * 1e9 / static_cast<double>(end - begin)) : 0;
      const auto tip =
          fmt::format("{} ({}): {}, {}", record_label(facts.program, r), phase_name(r.phase), ms(begin, end),
                      light.network_known ? fmt::format("{:.0f} % of its roof", 100 * share) : "network not measured");
      box(kRecords, kRecordHeight, begin, end, fmt::format("{} faint", phase_name(r.phase)), "", tip);
      const double left = x(begin), width = std::max(x(end) - left - 0.3, 0.3);
      svg_ +=
          fmt::format("<rect class=\"{} still\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\"/>",
                      phase_name(r.phase), left, kRecords + kRecordHeight * (1 - share), width, kRecordHeight * share);
    }
  }

  void memory() {
    std::int64_t top = 1;
    for (const auto& run : step_.runs)
      top = std::max(top, profile_.programs[static_cast<std::size_t>(run.program)].plan.live_bytes);
    const auto y = [&](std::int64_t bytes) {
      return kMemory + kMemoryHeight * (1 - static_cast<double>(bytes) / static_cast<double>(top));
    };
    for (const auto& run : step_.runs) {
      const auto& live = profile_.programs[static_cast<std::size_t>(run.program)].live_bytes;
      std::string path;
      for (std::size_t i = 0; i < run.times.size(); ++i)
        path += fmt::format("{}{:.2f},{:.2f} L{:.2f},{:.2f} ",
                            i ? "L" : fmt::format("M{:.2f},{} L", x(run.times[0].begin), kMemory + kMemoryHeight),
                            x(run.times[i].begin), y(live[i]), x(run.times[i].end), y(live[i]));
      if (!path.empty())
        svg_ += fmt::format("<path class=\"area\" d=\"{}L{:.2f},{} Z\"/>", path, x(run.times.back().end),
                            kMemory + kMemoryHeight);
    }
    svg_ += fmt::format("<text class=\"tick\" x=\"0\" y=\"{}\">{}</text>", kMemory + 32,
                        format_bytes(static_cast<double>(top)));
  }

  void axis() {
    const double span = static_cast<double>(step_.end - step_.begin) * 1e-6, step = tick_step(span, 8);
    for (double t = 0; t <= span * (1 + 1e-9); t += step) {
      const double at = kLeft + (kWidth - kLeft - kRight) * t / span;
      svg_ += fmt::format(
          "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"4\" y2=\"{1}\"/><text class=\"tick\" x=\"{0:.1f}\" "
          "y=\"{2}\" text-anchor=\"{4}\">{3:g} ms</text>",
          at, kAxis, kAxis + 16, t, at + kHalfTick > kWidth ? "end" : "middle");
    }
  }

  const Profile& profile_;
  const Roofs& roofs_;
  const StepTrace& step_;
  std::string svg_;
};

}  // namespace

std::string timeline_svg(const Profile& profile, const Roofs& roofs) {
  const auto* step = middle_step(profile);
  return step && step->end > step->begin ? Timeline(profile, roofs, *step).draw() : "";
}

}  // namespace hpcdl::lab
