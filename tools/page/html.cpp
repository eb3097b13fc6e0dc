#include <fmt/format.h>

#include "tools/page/page.h"
#include "tools/page/svg.h"

namespace hpcdl::lab {

namespace {

constexpr const char* kStyle = R"(
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:980px;margin:0 auto;padding:40px 24px 64px}.broad{max-width:1240px}.broad td{font-size:13.5px}h1{font-size:30px;margin:0 0 4px;letter-spacing:-.02em}h2{font-size:18px;margin:0 0 12px}
.sub{color:var(--soft);margin:0 0 28px}.card{background:var(--card);border:1px solid var(--line);border-radius:14px;padding:22px 24px;min-width:0}.scroll{overflow-x:auto}.hint{display:none;color:var(--soft);font-size:12px;margin:0 0 6px}
.caveat{border-left:4px solid var(--b);background:var(--card);padding:10px 16px;margin:0 0 20px}
.tiles{display:grid;grid-template-columns:repeat(4,1fr);gap:14px;margin:0 0 20px}.tile{background:var(--card);border:1px solid var(--line);border-radius:14px;padding:16px 18px}
.tile b{display:block;font-size:25px;letter-spacing:-.02em}.tile span{color:var(--soft);font-size:13px}
.cards{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:20px}.wide{grid-column:1/-1}table{border-collapse:collapse;width:100%}
td,th{padding:7px 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}tr:last-child td{border-bottom:0}
th{color:var(--soft);font-weight:500;white-space:normal;font-size:13px;vertical-align:bottom}.meter{position:relative;height:15px;min-width:120px}.meter b{position:absolute;inset:0 auto 0 0;border-radius:4px}.meter .pale{opacity:.28}.num{text-align:right;font-variant-numeric:tabular-nums;padding-left:14px;white-space:nowrap}
.kv td:first-child{color:var(--soft);padding-right:16px;white-space:nowrap}.kv td:last-child{text-align:right;font-variant-numeric:tabular-nums}
svg{width:100%;height:auto;display:block}.note{color:var(--soft);font-size:13px;margin:10px 0 0}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:18px;margin:0 0 18px}.pair:last-child{margin:0}.pair div{border-left:3px solid var(--a);padding:2px 0 2px 14px;white-space:pre-wrap;overflow-wrap:anywhere}
.pair div+div{border-color:var(--b)}.pair em{font-style:normal;font-weight:600}.tag{display:block;color:var(--soft);font-size:12px;text-transform:uppercase;letter-spacing:.06em}
footer{color:var(--soft);font-size:13px;margin-top:28px}@media(max-width:720px){.tiles{grid-template-columns:1fr 1fr}.cards,.pair{grid-template-columns:1fr}
main{padding:24px 12px 40px}.card{padding:16px}td{font-size:14px}.num{padding-left:10px}svg{min-width:680px}.many{min-width:560px}.hint{display:block}}
)";

constexpr std::size_t kManyColumns = 4;  // more than a phone shows next to each other

std::string body(const std::vector<Fact>& facts) {
  std::string rows;
  for (const auto& f : facts)
    rows += fmt::format("<tr><td>{}</td><td>{}</td></tr>\n", escaped(f.name), escaped(f.value));
  return "<table class=\"kv\">" + rows + "</table>";
}

/// One row; `meter`, if the table has meters, is what stands in their column.
std::string row(const Table& t, const std::vector<std::string>& words, std::string_view tag, const std::string& meter) {
  std::string out;
  for (std::size_t i = 0; i < t.columns.size(); ++i) {
    if (!t.meters.empty() && i == t.meters_before) out += fmt::format("<{0}>{1}</{0}>", tag, meter);
    out += fmt::format("<{0}{1}>{2}</{0}>", tag, is_number(t, i) ? " class=\"num\"" : "",
                       i < words.size() ? escaped(words[i]) : "");
  }
  return "<tr>" + out + "</tr>\n";
}

std::string html(const Meter& m) {
  const auto bar = [&](const char* kind, double share) {
    return fmt::format("<b{} style=\"width:{:.2f}%;background:var(--{})\"></b>", kind, 100 * share,
                       series_colour(static_cast<std::size_t>(m.colour)));
  };
  return "<div class=\"meter\">" + bar(" class=\"pale\"", m.whole) + bar("", m.part) + "</div>";
}

std::string body(const Table& t) {
  std::string rows = row(t, t.columns, "th", escaped(t.meters_name));
  for (std::size_t i = 0; i < t.rows.size(); ++i)
    rows += row(t, t.rows[i], "td", i < t.meters.size() ? html(t.meters[i]) : "");
  return (t.columns.size() < kManyColumns ? "<table>" : "<table class=\"many\">") + rows + "</table>";
}

std::string body(const LineChart& c) { return svg(c); }
std::string body(const BarChart& c) { return svg(c); }
std::string body(const Picture& p) { return p.svg; }

std::string body(const std::vector<Pair>& pairs) {
  std::string out;
  const auto side = [](const std::string& name, const std::string& lead, const std::string& text) {
    return fmt::format("<div><span class=\"tag\">{}</span><em>{}</em>{}</div>", escaped(name), escaped(lead),
                       escaped(text));
  };
  for (const auto& p : pairs)
    out += "<div class=\"pair\">" + side(p.first_name, p.lead, p.first) + side(p.second_name, p.lead, p.second) +
           "</div>\n";
  return out;
}

/// On a phone this is wider than the page: it scrolls separately, below a line that says so.
bool is_wide(const Card& c) {
  const auto* table = std::get_if<Table>(&c.content);
  return std::holds_alternative<LineChart>(c.content) || std::holds_alternative<BarChart>(c.content) ||
         std::holds_alternative<Picture>(c.content) || (table && table->columns.size() >= kManyColumns);
}

std::string html(const Card& c) {
  auto content = std::visit([](const auto& x) { return body(x); }, c.content);
  if (is_wide(c) && !content.empty())
    content = "<p class=\"hint\">Swipe sideways to see all of it &rarr;</p><div class=\"scroll\">" + content + "</div>";
  return fmt::format("<section class=\"card{}\"><h2>{}</h2>\n{}{}</section>\n", c.half ? "" : " wide", escaped(c.title),
                     content, c.note.empty() ? "" : fmt::format("<p class=\"note\">{}</p>", escaped(c.note)));
}

}  // namespace

std::string page_html(const Page& page) {
  std::string out = fmt::format(
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\"><title>{0}</title>"
      "<style>{1}</style></head><body><main{3}><h1>{0}</h1><p class=\"sub\">{2}</p>\n",
      escaped(page.title), palette(":root") + kStyle, escaped(page.subtitle), page.broad ? " class=\"broad\"" : "");
  if (!page.caveat.empty()) out += fmt::format("<p class=\"caveat\">{}</p>\n", escaped(page.caveat));
  if (!page.tiles.empty()) {
    out += "<div class=\"tiles\">";
    for (const auto& t : page.tiles)
      out += fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>", escaped(t.value), escaped(t.name));
    out += "</div>\n";
  }
  out += "<div class=\"cards\">\n";
  for (const auto& c : page.cards) out += html(c);
  return out + fmt::format("</div>\n<footer>{}</footer></main></body></html>\n", escaped(page.footer));
}

}  // namespace hpcdl::lab
