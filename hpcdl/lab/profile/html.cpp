#include "hpcdl/lab/profile/html.h"

#include <fmt/format.h>

#include <algorithm>

#include "hpcdl/core/units.h"
#include "hpcdl/lab/page/svg.h"
#include "hpcdl/lab/profile/advice.h"

namespace hpcdl::lab {

namespace {

constexpr const char* kStyle = R"(
:root{--ink:#1b2330;--soft:#5d6b80;--line:#dde3ec;--page:#f5f7fa;--card:#fff;--forward:#2f74d0;--backward:#d9822b;--update:#2a9461;--recompute:#8a63d2;--stage:#b9c4d3;--area:#9db4d3}
@media(prefers-color-scheme:dark){:root{--ink:#e6ebf2;--soft:#94a3b8;--line:#2b3648;--page:#0f1520;--card:#172030;--forward:#5b9dff;--backward:#f0a04b;--update:#4cc38a;--recompute:#a98be8;--stage:#3d4b60;--area:#3f5673}}
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1240px;margin:0 auto;padding:36px 24px 56px}h1{font-size:28px;margin:0 0 4px;letter-spacing:-.02em}h2{font-size:18px;margin:0 0 12px}
.sub{color:var(--soft);margin:0 0 24px}.card{background:var(--card);border:1px solid var(--line);border-radius:14px;padding:20px 22px;margin:0 0 20px;min-width:0}.scroll{overflow-x:auto}.hint{display:none;color:var(--soft);font-size:12px;margin:0 0 6px}
.tiles{display:grid;grid-template-columns:repeat(5,1fr);gap:14px;margin:0 0 20px}.tile{background:var(--card);border:1px solid var(--line);border-radius:14px;padding:14px 16px}
.tile b{display:block;font-size:23px;letter-spacing:-.02em}.tile span{color:var(--soft);font-size:13px}
table{border-collapse:collapse;width:100%;font-size:13.5px}td,th{padding:5px 0 5px 12px;border-bottom:1px solid var(--line);text-align:left;white-space:nowrap}
td:first-child,th:first-child{padding-left:0}tr:last-child td{border-bottom:0}th{color:var(--soft);font-weight:500;white-space:normal;vertical-align:bottom}.num{text-align:right;font-variant-numeric:tabular-nums}
svg{width:100%;height:auto;display:block}.grid{stroke:var(--line)}.tick{fill:var(--soft);font-size:11.5px}.row{fill:var(--soft);font-size:12.5px}.in{fill:#fff;font-size:11px;text-anchor:middle;pointer-events:none}
.stage{fill:var(--stage)}.forward{fill:var(--forward)}.backward{fill:var(--backward)}.update{fill:var(--update)}.recompute{fill:var(--recompute)}.faint{opacity:.28}.still{pointer-events:none}.area{fill:var(--area)}
rect.stage+.in{fill:var(--ink)}.budget{display:flex;height:26px;border-radius:8px;overflow:hidden;margin:0 0 8px}.budget i{display:block}
.legend{color:var(--soft);font-size:13px;margin:8px 0 0}.legend span{display:inline-block;white-space:nowrap;margin:0 14px 0 0}.legend i{display:inline-block;width:12px;height:12px;border-radius:3px;margin:0 6px 0 0;vertical-align:-1px}
.bar{position:relative;height:15px;min-width:120px;border-radius:4px}.bar i,.bar b{position:absolute;left:0;top:0;bottom:0;border-radius:4px}.bar i{opacity:.28}
ol{margin:0;padding:0 0 0 20px}li{margin:0 0 6px}li span{color:var(--soft)}footer{color:var(--soft);font-size:13px;margin-top:24px}@media(max-width:860px){.tiles{grid-template-columns:1fr 1fr}main{padding:24px 12px 40px}.card{padding:16px}svg{min-width:820px}.hint{display:block}}
)";

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }
std::string ms(double seconds) { return fmt::format("{:.3f}", 1e3 * seconds); }
std::string tile(const std::string& value, const std::string& name) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>", value, name);
}

struct Share {
  const char* name;
  const char* colour;
  double seconds;
};

/// On a phone this is wider than the page: it scrolls separately, below a line that says so.
std::string wide(const std::string& content) {
  return "<p class=\"hint\">Swipe sideways to see all of it &rarr;</p><div class=\"scroll\">" + content + "</div>";
}

std::string sentence(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text + ".";
}

std::string budget(const Report& r) {
  const Share shares[] = {{"data wait", "--ink", r.data},
                          {"forward", "--forward", r.phases[0]},
                          {"recompute", "--recompute", r.phases[1]},
                          {"backward", "--backward", r.phases[2]},
                          {"optimizer", "--update", r.phases[3]},
                          {"idle", "--line", r.gap_seconds()}};
  std::string bar, legend;
  for (const auto& s : shares) {
    if (s.seconds <= 0) continue;
    bar += fmt::format("<i title=\"{}\" style=\"width:{:.3f}%;background:var({})\"></i>", s.name,
                       100 * s.seconds / r.step_seconds, s.colour);
    legend += fmt::format("<span><i style=\"background:var({})\"></i>{} {} ms, {}</span>\n", s.colour, s.name,
                          ms(s.seconds), percent(s.seconds / r.step_seconds));
  }
  return "<section class=\"card\"><h2>One step</h2><div class=\"budget\">" + bar + "</div><p class=\"legend\">" +
         legend + "</p></section>";
}

/// The pale bar is the time, the full bar the time at the roof.
std::string ranked(const Report& r) {
  constexpr std::size_t kRows = 30;
  const double longest = r.rows.empty() ? 1 : r.rows[0].seconds;
  std::string rows;
  for (std::size_t i = 0; i < std::min(kRows, r.rows.size()); ++i) {
    const auto& row = r.rows[i];
    const auto phase = phase_name(row.phase);
    rows += fmt::format("<tr><td>{}</td><td class=\"num\">{:g}</td><td class=\"num\">{}</td><td class=\"num\">{}</td>",
                        escaped(row.label()), row.calls, ms(row.seconds), percent(row.seconds / r.step_seconds));
    rows += fmt::format(
        "<td style=\"width:24%\"><div class=\"bar\"><i style=\"width:{:.2f}%;background:var(--{})\"></i><b "
        "style=\"width:{:.2f}%;background:var(--{})\"></b></div></td>",
        100 * row.seconds / longest, phase, 100 * std::min(row.light, row.seconds) / longest, phase);
    rows += fmt::format(
        "<td>{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num\">{:.2f}x</td><td "
        "class=\"num\">{:.2f}x</td></tr>",
        bound_name(row.bound), row.roof_text(), row.busy >= 0 ? percent(row.busy) : "-",
        r.step_seconds / std::max(r.step_seconds - row.lost(), 1e-12),
        r.step_seconds / std::max(r.step_seconds - row.seconds, 1e-12));
  }
  return "<section class=\"card\"><h2>Records by time</h2>" +
         wide(
             "<table><tr><th>record (all layers together)</th><th class=\"num\">calls</th><th class=\"num\">ms</th>"
             "<th class=\"num\">share</th><th>time (full colour: at its roof)</th><th>bound</th><th class=\"num\">of "
             "roof</th><th class=\"num\">threads busy</th><th class=\"num\">step at its roof</th><th class=\"num\">if "
             "free</th></tr>" +
             rows + "</table>") +
         "</section>";
}

std::string advice_card(const Report& r) {
  std::string items;
  for (const auto& a : advice(r.rows, r.roofs))
    items += fmt::format("<li><b>{}</b>: {} ms above its roof, {}. <span>{}</span></li>", escaped(a.label), ms(a.lost),
                         percent(a.lost / r.step_seconds), escaped(sentence(a.text)));
  return items.empty() ? ""
                       : "<section class=\"card\"><h2>Where most time is lost</h2><ol>" + items + "</ol></section>";
}

}  // namespace

std::string report_html(const Report& r, const Profile& profile, const std::string& title) {
  std::string html = fmt::format(
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\"><title>{0}</title><style>{1}</style></head><body><main>"
      "<h1>{0}</h1><p class=\"sub\">{2} recorded step{3} on {4} thread{5}; recording costs {6:+.2f} % (median of {7} "
      "pair{8} of recorded and plain steps)</p>",
      escaped(title), kStyle, r.steps, r.steps == 1 ? "" : "s", r.threads, r.threads == 1 ? "" : "s",
      100 * r.overhead.median, r.overhead.pairs, r.overhead.pairs == 1 ? "" : "s");
  html += "<div class=\"tiles\">" + tile(fmt::format("{} ms", ms(r.step_seconds)), "per step, on average") +
          tile(percent(r.of_roof()), "of the speed of light") +
          tile(percent(r.data / r.step_seconds), "of the step waited for data") +
          tile(r.busy < 0 ? "-" : percent(r.busy), "of the threads' time was work") +
          tile(format_bytes(static_cast<double>(r.memory.live)), "of activations at the peak") + "</div>";
  html += budget(r);
  html += "<section class=\"card\"><h2>The step of median length, over time</h2>" +
          wide(timeline_svg(profile, r.roofs)) +
          fmt::format(
              "<p class=\"legend\">Each record is filled up to its share of the roof. Memory peaks at <b>{}</b>: {} of "
              "activations, and {} of parameters, gradients and optimizer state.</p></section>",
              escaped(r.memory.label), format_bytes(static_cast<double>(r.memory.live)),
              format_bytes(static_cast<double>(r.memory.external)));
  html += ranked(r) + advice_card(r);
  return html +
         "<footer>Made by <code>hpcdl profile</code>. Roofs are measured on this "
         "machine.</footer></main></body></html>\n";
}

}  // namespace hpcdl::lab
