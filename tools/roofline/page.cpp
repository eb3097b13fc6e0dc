// The page: the picture, and every row below it, sortable and searchable. Also well-formed XML.

#include <map>

#include "tools/page/svg.h"
#include "tools/roofline/picture.h"

namespace hpcdl::lab::roofline {

namespace {

constexpr const char* kStyle = R"css(
:root { color-scheme: light dark; --paper: #fff; --ink: #1b2330; --faint: #5b6675; --line: #e1e6ec; --f32: #0b63b8; --bf16: #c2570c; --i8: #0b7a5b; --fault: #c81e1e; }
html[data-theme=dark] { color-scheme: dark; --paper: #0f141b; --ink: #e8edf4; --faint: #9aa7b6; --line: #232c38; --f32: #62aefc; --bf16: #ffa24d; --i8: #45d0a2; --fault: #ff6b6b; }
html[data-theme=light] { color-scheme: light; }
@media (prefers-color-scheme: dark) { html:not([data-theme=light]) { --paper: #0f141b; --ink: #e8edf4; --faint: #9aa7b6; --line: #232c38; --f32: #62aefc; --bf16: #ffa24d; --i8: #45d0a2; --fault: #ff6b6b; } }
body { margin: 0 auto; padding: 18px; max-width: 1320px; background: var(--paper); color: var(--ink); font: 14px/1.45 Inter, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif; }
svg { width: 100%; height: auto; display: block; }
.swipe { display: none; }
.caveat { border-left: 4px solid var(--bf16); padding: 4px 14px; }
@media (max-width: 900px) { body { padding: 12px; } .picture { overflow-x: auto; } .picture svg { min-width: 900px; } table { display: block; overflow-x: auto; } .swipe { display: block; } }
.mark { cursor: pointer; }
.mark.on { opacity: 1 !important; }
.mark.on circle { stroke-width: 4px !important; r: 8px; }
form { display: flex; gap: 12px; margin: 14px 0 8px; }
input, button { font: inherit; color: inherit; background: transparent; border: 1px solid var(--line); border-radius: 6px; padding: 5px 10px; }
input { flex: 1; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; cursor: pointer; color: var(--faint); font-weight: 600; position: sticky; top: 0; background: var(--paper); }
th, td { padding: 3px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }
.n { text-align: right; }
tr.on { outline: 2px solid var(--f32); outline-offset: -2px; }
tr.fault td { color: var(--fault); font-weight: 700; }
.bar { display: inline-block; width: 90px; height: 8px; margin-left: 8px; background: var(--line); border-radius: 4px; overflow: hidden; vertical-align: middle; }
.bar i { display: block; height: 100%; background: var(--f32); }
.bar .bf16 { background: var(--bf16); }
.bar .i8 { background: var(--i8); }
)css";

constexpr const char* kScript = R"js(
const body = document.querySelector('tbody'), rows = [...body.rows];
const mark = id => document.querySelector('.mark[data-row="' + id + '"]');
const set = (id, on) => { for (const e of [mark(id), document.getElementById('r' + id)]) if (e) e.classList.toggle('on', on); };
rows.forEach(r => { const id = r.id.slice(1); r.onmouseenter = () => set(id, true); r.onmouseleave = () => set(id, false); });
document.querySelectorAll('.mark[data-row]').forEach(m => {
  const id = m.dataset.row;
  m.onmouseenter = () => set(id, true);
  m.onmouseleave = () => set(id, false);
  m.onclick = () => document.getElementById('r' + id).scrollIntoView({block: 'center', behavior: 'smooth'});
});
document.querySelectorAll('th').forEach((h, i) => {
  let sign = 1;
  h.onclick = () => {
    const value = r => r.cells[i].dataset.v === undefined ? r.cells[i].textContent : Number(r.cells[i].dataset.v);
    rows.sort((a, b) => sign * (value(a) > value(b) ? 1 : value(b) > value(a) ? -1 : 0));
    sign = -sign;
    body.append(...rows);
  };
});
document.getElementById('find').oninput = e => {
  const words = e.target.value.toLowerCase().split(' ');
  rows.forEach(r => {
    const found = words.every(w => r.textContent.toLowerCase().includes(w));
    r.hidden = !found;
    const m = mark(r.id.slice(1));
    if (m) m.style.display = found ? '' : 'none';
  });
};
document.getElementById('theme').onclick = () => {
  const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  root.dataset.theme = dark ? 'light' : 'dark';
};
)js";

std::string table_row(const Row& r, std::size_t index) {
  std::string html = fmt::format("<tr id=\"r{}\"{}>", index, r.fault() ? " class=\"fault\"" : "");
  auto words = cells(r);
  if (r.count > 1) words[3] += fmt::format(" x{}", r.count);
  if (r.fault()) words.back() += " ABOVE ITS ROOF";
  // What the columns of numbers are sorted by.
  const std::map<std::size_t, double> values{
      {4, r.intensity()}, {6, r.light.seconds}, {7, r.seconds}, {8, r.cost.operations / r.seconds}, {9, r.share()}};
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto value = values.find(i);
    html += value == values.end() ? "<td>" : fmt::format("<td class=\"n\" data-v=\"{:.6g}\">", value->second);
    html += escaped(words[i]);
    if (i == 9)
      html += fmt::format("<span class=\"bar\"><i class=\"{}\" style=\"width:{:.1f}%\"></i></span>", colour_class(r),
                          100 * std::min(r.share(), 1.0));
    html += "</td>";
  }
  return html + (r.measured() ? "" : "<td></td><td></td><td></td>") + "</tr>\n";
}

}  // namespace

std::string to_html(const Report& report) {
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n<meta charset=\"utf-8\"/>\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n";
  html += fmt::format("<title>{}</title>\n<style>{}{}{}</style>\n</head>\n<body>\n",
                      escaped("Roofline of " + report.title()), kStyle, picture_rules("html[data-theme=light] ", false),
                      picture_rules("html[data-theme=dark] ", true));
  if (report.disturbance.heavy())
    html += "<p class=\"caveat\">These figures are " + escaped(report.disturbance.text()) + ".</p>\n";
  html +=
      "<p class=\"swipe\">The picture and the table are wider than this screen: swipe them sideways.</p>\n<div "
      "class=\"picture\">" +
      to_svg(report) + "</div>\n";
  html +=
      "<form onsubmit=\"return false\"><input id=\"find\" placeholder=\"find: softmax bf16 bwd\"/><button id=\"theme\" "
      "type=\"button\">light / dark</button></form>\n";
  html += "<table>\n<thead><tr>";
  for (const char* name : {"op", "shape", "type", "pass"}) html += fmt::format("<th>{}</th>", name);
  html += "<th class=\"n\">FLOP/byte</th><th>bound</th>";
  for (const char* name : {"light", "time", "achieved", "share of its roof"})
    html += fmt::format("<th class=\"n\">{}</th>", name);
  html += "</tr></thead>\n<tbody>\n";
  const auto all = report.all();
  for (std::size_t i = 0; i < all.size(); ++i) html += table_row(*all[i], i);
  return html + "</tbody>\n</table>\n<script>" + kScript + "</script>\n</body>\n</html>\n";
}

}  // namespace hpcdl::lab::roofline
