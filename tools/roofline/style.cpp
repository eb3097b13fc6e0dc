// Colours, texts and the choice of labels.

#include <algorithm>
#include <map>
#include <set>

#include "tools/roofline/picture.h"

namespace hpcdl::lab::roofline {

namespace {

struct Palette {
  const char *paper, *ink, *faint, *grid, *ground, *memory, *cache, *fault;
  const char *f32, *bf16, *i8;  // distinguishable with every kind of colour blindness
};
constexpr Palette kLight{"#ffffff", "#1b2330", "#5b6675", "#e6eaef", "#f3f6fa", "#3a4454",
                         "#9aa5b4", "#c81e1e", "#0b63b8", "#c2570c", "#0b7a5b"};
// With this many labels each roof stays readable.
constexpr int kLabelsEach = 14, kLabelsInCache = 6;
constexpr Palette kDark{"#0f141b", "#e8edf4", "#9aa7b6", "#232c38", "#161d27", "#c3cedc",
                        "#5f6d7f", "#ff6b6b", "#62aefc", "#ffa24d", "#45d0a2"};

}  // namespace

std::string colour_class(const Row& row) {
  for (const auto& part : row.parts)
    if (part.unit == Unit::i8) return "i8";
  const auto half = [](const auto& part) { return part.unit == Unit::bf16 || part.unit == Unit::f16; };
  return std::any_of(row.parts.begin(), row.parts.end(), half) ? "bf16" : "f32";
}

std::string picture_rules(const std::string& prefix, bool dark) {
  const Palette& c = dark ? kDark : kLight;
  std::string css;
  const auto rule = [&](const std::string& selector, const std::string& body) {
    css += fmt::format("{}.roofline {}{{{}}}\n", prefix, selector, body);
  };
  const auto halo = fmt::format("paint-order:stroke;stroke:{};stroke-width:3px;stroke-linejoin:round;", c.paper);
  rule(".paper", fmt::format("fill:{}", c.paper));
  rule(".title", fmt::format("fill:{};font-size:25px;font-weight:650", c.ink));
  rule(".subtitle", fmt::format("fill:{};font-size:14.5px", c.faint));
  rule(".legend", fmt::format("fill:{};font-size:12.5px", c.ink));
  rule(".axis", fmt::format("fill:{};font-size:14px", c.ink));
  rule(".tick", fmt::format("fill:{};font-size:12.5px", c.faint));
  rule(".note", fmt::format("fill:{};font-size:12px", c.faint));
  rule(".grid line", fmt::format("stroke:{};stroke-width:1", c.grid));
  rule(".ground", fmt::format("fill:{}", c.ground));
  rule(".memory", fmt::format("stroke:{};stroke-width:2.6", c.memory));
  rule(".cache", fmt::format("stroke:{};stroke-width:1.3;stroke-dasharray:6 4", c.cache));
  rule(".on-memory", fmt::format("fill:{};font-size:13px;font-weight:600;{}", c.memory, halo));
  rule(".on-cache", fmt::format("fill:{};font-size:12.5px;{}", c.faint, halo));
  rule(".flat", "stroke-width:2.2");
  rule(".on-flat", fmt::format("font-size:13px;font-weight:600;{}", halo));
  rule(".label", fmt::format("font-size:11.5px;{}", halo));
  rule("text.seed", "font-weight:700");
  rule(".leader", "stroke-width:.8;opacity:.75");
  rule(".room", "stroke-width:1.2;opacity:.5");
  rule(".mark", "opacity:.38");
  rule(".mark.strong,.roofline circle.mark", "opacity:1");
  for (const auto& [kind, colour] : {std::pair{"f32", c.f32}, {"bf16", c.bf16}, {"i8", c.i8}, {"key", c.faint}}) {
    rule(fmt::format("line.{}", kind), fmt::format("stroke:{}", colour));
    rule(fmt::format("text.{}", kind), fmt::format("fill:{}", colour));
    rule(fmt::format("circle.{0},{1}.roofline .{0} circle", kind, prefix),
         fmt::format("fill:{};stroke:{};stroke-width:1", colour, c.paper));
    rule(fmt::format("circle.{0}.ring,{1}.roofline .{0}.ring circle", kind, prefix),
         fmt::format("fill:{};stroke:{};stroke-width:2", c.paper, colour));
  }
  rule(".inset", fmt::format("fill:{};stroke:{}", c.paper, c.grid));
  rule(".inset-title", fmt::format("fill:{};font-size:12.5px;font-weight:600", c.ink));
  rule(".inset-name", fmt::format("fill:{};font-size:12px", c.faint));
  rule(".inset-value", fmt::format("fill:{};font-size:12px;font-weight:600", c.ink));
  rule("line.track", fmt::format("stroke:{};stroke-width:1", c.grid));
  rule("line.median", fmt::format("stroke:{};stroke-width:2.4", c.ink));
  rule("circle.dot", "opacity:.45");
  rule(".fault path", fmt::format("fill:{};stroke:{}", c.fault, c.paper));
  rule("text.fault", fmt::format("fill:{};font-weight:700", c.fault));
  return css;
}

std::vector<const Row*> labelled(const std::vector<const Row*>& rows) {
  std::vector<const Row*> order = rows;
  const auto rank = [](const Row* r) { return r->fault() ? 0 : r->source == "seed" ? 1 : 2; };
  const auto weight = [](const Row* r) { return static_cast<double>(r->count) * r->light.seconds; };
  std::stable_sort(order.begin(), order.end(), [&](const Row* a, const Row* b) {
    return rank(a) != rank(b) ? rank(a) < rank(b) : weight(a) > weight(b);
  });
  if (order.size() <= kLabelAll) return order;
  std::vector<const Row*> chosen;
  std::set<std::string> seen;
  std::map<std::string, int> count;
  for (const Row* r : order) {
    const std::string where = r->light.by_arithmetic()     ? colour_class(*r)
                              : r->light.bound == "memory" ? "memory"
                                                           : "cache";
    // Away from the arithmetic roofs, bf16 is the same kernel with half the bytes.
    const bool own = r->light.by_arithmetic() || r->dtype == "f32";
    if (!r->fault() && r->source != "step" && (r->pass != "fwd" || !own)) continue;
    const auto key = r->op.substr(0, r->op.find('+')) + where + (r->source == "step" ? r->pass + r->scope : "");
    if (!r->fault() && (seen.contains(key) || count[where] >= (where == "cache" ? kLabelsInCache : kLabelsEach)))
      continue;
    seen.insert(key), ++count[where];
    chosen.push_back(r);
  }
  return chosen;
}

}  // namespace hpcdl::lab::roofline
