#include <fmt/format.h>

#include <algorithm>

#include "hpcdl/core/units.h"
#include "hpcdl/lab/ddp/ddp.h"

namespace hpcdl::lab {

namespace {

constexpr double kWidth = 860, kLeft = 110, kRight = 170, kTop = 64, kBar = 24, kPitch = 34;

std::string text(double x, double y, std::string_view classes, const std::string& words,
                 std::string_view anchor = "start") {
  return fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", classes, x, y,
                     anchor, words);
}

std::string bar(double x, double y, double width, std::string_view colour) {
  return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\"/>\n", x, y,
                     std::max(0.0, width), kBar, colour);
}

}  // namespace

std::string ddp_picture(const DdpReport& r, const std::string& title) {
  double longest = 0;
  for (const auto& x : r.results) longest = std::max(longest, x.seconds());
  const double height = kTop + kPitch * static_cast<double>(r.results.size()) + 44,
               scale = (kWidth - kLeft - kRight) / longest;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"step time by bucket "
      "size\">\n"
      "<style>text{{font:13px "
      "sans-serif;fill:#222}}.title{{font-weight:bold;font-size:15px}}.small{{font-size:12px;fill:#555}}"
      "@media(prefers-color-scheme:dark){{text{{fill:#e6ebf2}}.small{{fill:#94a3b8}}.paper{{fill:#0f1520}}}}</style>\n"
      "<rect class=\"paper\" width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
      kWidth, height);
  svg += text(16, 26, "title", title);
  svg += text(16, 46, "small",
              fmt::format("{} of gradients over {}; dark: waiting for gradients; line: the step without exchange",
                          format_bytes(4.0 * static_cast<double>(r.parameters)), r.transport));
  double y = kTop;
  for (const auto& x : r.results) {
    const double waited = x.form.exchange ? std::min(x.waited_seconds, x.seconds()) : 0;
    svg += text(kLeft - 8, y + 17, "", x.form.name, "end");
    svg += bar(kLeft, y, (x.seconds() - waited) * scale, x.form.exchange ? "#7fb2de" : "#b9c4cc");
    svg += bar(kLeft + (x.seconds() - waited) * scale, y, waited * scale, "#1c5d99");
    svg += text(kLeft + x.seconds() * scale + 6, y + 17, "small",
                x.form.exchange ? fmt::format("{}, {:.0f} % hidden", ddp_duration(x.seconds()), 100 * x.hidden())
                                : ddp_duration(x.seconds()));
    y += kPitch;
  }
  if (!r.results.empty() && !r.results[0].form.exchange) {
    const double at = kLeft + r.results[0].seconds() * scale;
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#c0392b\" stroke-dasharray=\"4 "
        "3\"/>\n",
        at, kTop - 6, y);
  }
  svg += text(16, height - 14, "small",
              fmt::format("{} ranks on {} host{}, {} parameters, {} tokens a step; medians of {} steps in turns",
                          r.ranks, r.hosts, r.hosts > 1 ? "s" : "", format_count(static_cast<double>(r.parameters)),
                          r.tokens, r.options.rounds));
  return svg + "</svg>\n";
}

}  // namespace hpcdl::lab
