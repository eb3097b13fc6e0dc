#include "cli/demo_report.h"

#include <fmt/format.h>

#include "cli/demo_curve.h"
#include "hpcdl/core/units.h"

namespace hpcdl::cli {

namespace {

std::string bytes(std::int64_t n) { return format_bytes(static_cast<double>(n)); }

struct Row {
  std::string name, before, after, change;
};

std::vector<Row> comparison(const ModelFacts& a, const ModelFacts& b) {
  const auto times = [](double x) { return fmt::format("{:.2f}x", x); };
  const double size = static_cast<double>(a.file_bytes) / static_cast<double>(b.file_bytes);
  return {{"weights on disk", bytes(a.file_bytes), bytes(b.file_bytes), times(size) + " smaller"},
          {"bits per weight of the matrices", fmt::format("{:.0f}", a.bits_per_weight), fmt::format("{:.3f}", b.bits_per_weight), ""},
          {"held-out perplexity", fmt::format("{:.2f}", a.perplexity), fmt::format("{:.2f}", b.perplexity), fmt::format("{:+.2f} %", 100 * (b.perplexity / a.perplexity - 1))},
          {"tokens per second", fmt::format("{:.0f}", a.tokens_per_second), fmt::format("{:.0f}", b.tokens_per_second), times(b.tokens_per_second / a.tokens_per_second)},
          {"first token", fmt::format("{:.1f} ms", a.first_token_ms), fmt::format("{:.1f} ms", b.first_token_ms), ""},
          {"peak memory while generating", bytes(a.peak_rss_bytes), bytes(b.peak_rss_bytes), ""}};
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else if (c == '&') out += "&amp;";
    else out += c;
  }
  return out;
}

constexpr const char* kStyle = R"(
:root{--ink:#1b2330;--soft:#5d6b80;--line:#dde3ec;--page:#f5f7fa;--card:#fff;--a:#1f6feb;--b:#d9822b;--good:#1a7f4b}
@media(prefers-color-scheme:dark){:root{--ink:#e6ebf2;--soft:#94a3b8;--line:#2b3648;--page:#0f1520;--card:#172030;--a:#5b9dff;--b:#f0a04b;--good:#4cc38a}}
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:980px;margin:0 auto;padding:40px 24px 64px}h1{font-size:30px;margin:0 0 4px;letter-spacing:-.02em}h2{font-size:18px;margin:0 0 12px}
.sub{color:var(--soft);margin:0 0 28px}.card{background:var(--card);border:1px solid var(--line);border-radius:14px;padding:22px 24px;margin:0 0 20px}
.tiles{display:grid;grid-template-columns:repeat(4,1fr);gap:14px;margin:0 0 20px}.tile{background:var(--card);border:1px solid var(--line);border-radius:14px;padding:16px 18px}
.tile b{display:block;font-size:25px;letter-spacing:-.02em}.tile span{color:var(--soft);font-size:13px}
.facts{display:grid;grid-template-columns:1fr 1fr;gap:20px}.facts .card{margin:0}table{border-collapse:collapse;width:100%}
td,th{padding:7px 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}tr:last-child td{border-bottom:0}
th{color:var(--soft);font-weight:500;font-size:13px}.num{text-align:right;font-variant-numeric:tabular-nums;padding-left:14px;white-space:nowrap}
.kv td:first-child{color:var(--soft);padding-right:16px;white-space:nowrap}.kv td:last-child{text-align:right;font-variant-numeric:tabular-nums}
.change{color:var(--good)}svg{width:100%;height:auto;display:block}.grid{stroke:var(--line)}.tick{fill:var(--soft);font-size:12px}
.raw{fill:none;stroke:var(--a);stroke-opacity:.25;stroke-width:1}.line{fill:none;stroke:var(--a);stroke-width:2.4;stroke-linejoin:round}.dot{fill:var(--b);stroke:var(--card);stroke-width:1.5}
.legend{color:var(--soft);font-size:13px;margin:8px 0 0}.legend i{display:inline-block;width:12px;height:12px;border-radius:6px;margin:0 6px 0 16px;vertical-align:-1px}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:18px;margin:0 0 18px}.pair:last-child{margin:0}.pair div{border-left:3px solid var(--a);padding:2px 0 2px 14px;white-space:pre-wrap;overflow-wrap:anywhere}
.pair div+div{border-color:var(--b)}.pair em{font-style:normal;font-weight:600}.tag{display:block;color:var(--soft);font-size:12px;text-transform:uppercase;letter-spacing:.06em}
footer{color:var(--soft);font-size:13px;margin-top:28px}@media(max-width:720px){.tiles{grid-template-columns:1fr 1fr}.facts,.pair{grid-template-columns:1fr}}
)";

std::string facts_card(const std::string& title, const std::vector<Fact>& facts) {
  std::string rows;
  for (const auto& f : facts) rows += fmt::format("<tr><td>{}</td><td>{}</td></tr>", escaped(f.name), escaped(f.value));
  return fmt::format("<section class=\"card\"><h2>{}</h2><table class=\"kv\">{}</table></section>", title, rows);
}

std::string tile(const std::string& value, const std::string& name) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>", escaped(value), escaped(name));
}

std::string comparison_card(const DemoReport& r) {
  std::string rows;
  for (const auto& row : comparison(r.before, r.after))
    rows += fmt::format("<tr><td>{}</td><td class=\"num\">{}</td><td class=\"num\">{}</td><td class=\"num change\">{}</td></tr>", row.name, row.before, row.after, row.change);
  return "<section class=\"card\"><h2>Before and after INT4</h2><table><tr><th></th><th class=\"num\">as trained</th><th class=\"num\">INT4</th><th></th></tr>" + rows + "</table></section>";
}

std::string samples_card(const DemoReport& r) {
  std::string body;
  for (const auto& s : r.samples)
    body += fmt::format("<div class=\"pair\"><div><span class=\"tag\">as trained</span><em>{0}</em>{1}</div><div><span class=\"tag\">INT4</span><em>{0}</em>{2}</div></div>",
                        escaped(s.prompt), escaped(s.before), escaped(s.after));
  return "<section class=\"card\"><h2>What it writes</h2>" + body + "</section>";
}

}  // namespace

std::string report_html(const DemoReport& r) {
  const double smaller = static_cast<double>(r.before.file_bytes) / static_cast<double>(r.after.file_bytes);
  std::string html = fmt::format("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>{0}</title>"
                                 "<style>{1}</style></head><body><main><h1>{0}</h1><p class=\"sub\">{2}</p>", escaped(r.title), kStyle, escaped(r.date));
  html += "<div class=\"tiles\">" + tile(fmt::format("{:.2f}", r.before.perplexity), "held-out perplexity as trained") +
          tile(fmt::format("{:.2f}", r.after.perplexity), "held-out perplexity in INT4") + tile(fmt::format("{:.1f}x", smaller), "smaller on disk in INT4") +
          tile(fmt::format("{:.0f}", r.after.tokens_per_second), "tokens per second, INT4, mapped") + "</div>";
  html += "<section class=\"card\"><h2>Loss</h2>" + curve_svg(r.curve, r.evaluation) +
          "<p class=\"legend\"><i style=\"background:var(--a)\"></i>training (faint: every step)<i style=\"background:var(--b)\"></i>held-out text</p></section>";
  html += comparison_card(r) + samples_card(r);
  html += "<div class=\"facts\">" + facts_card("Training", r.training) + facts_card("Model", r.model) + facts_card("Text", r.text) + facts_card("Machine", r.machine) + "</div>";
  html += "<div style=\"height:20px\"></div>" + facts_card("Where the time went", r.stages);
  return html + "<footer>Made by <code>hpcdl demo</code>: text of this machine, a tokenizer and a transformer trained on it, a checkpoint, 4-bit weights, and generation from the memory-mapped files.</footer></main></body></html>\n";
}

std::string report_text(const DemoReport& r) {
  std::string out;
  const auto list = [&](const char* title, const std::vector<Fact>& facts) {
    out += fmt::format("\n{}\n", title);
    for (const auto& f : facts) out += fmt::format("  {:<34} {}\n", f.name, f.value);
  };
  list("Text", r.text);
  list("Model", r.model);
  list("Training", r.training);
  out += fmt::format("\n{:<36} {:>14} {:>14}\n", "Before and after INT4", "as trained", "INT4");
  for (const auto& row : comparison(r.before, r.after)) out += fmt::format("  {:<34} {:>14} {:>14}  {}\n", row.name, row.before, row.after, row.change);
  for (const auto& s : r.samples) out += fmt::format("\nas trained | {}{}\nINT4       | {}{}\n", s.prompt, s.before, s.prompt, s.after);
  list("Where the time went", r.stages);
  return out;
}

}  // namespace hpcdl::cli
