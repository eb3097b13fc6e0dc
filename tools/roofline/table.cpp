// The roofline for a terminal: aligned columns, one line per kernel.

#include <algorithm>
#include <map>

#include "tools/compare/statistics.h"
#include "tools/page/page.h"
#include "tools/roofline/report.h"

namespace hpcdl::lab::roofline {

namespace {

class Paint {
 public:
  explicit Paint(bool on) : on_(on) {}
  std::string operator()(const char* code, const std::string& text) const {
    return on_ ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : text;
  }

 private:
  bool on_;
};

constexpr const char *kBold = "1", *kDim = "2", *kRed = "1;31", *kGreen = "32", *kYellow = "33";

std::string bar(double share) {
  const auto full = static_cast<std::size_t>(std::clamp(share, 0.0, 1.0) * 10 + 0.5);
  std::string text;
  for (std::size_t i = 0; i < 10; ++i) text += i < full ? "█" : "░";
  return text;
}

const char* share_colour(const Row& r) {
  return r.fault() ? kRed : r.share() >= 0.8 ? kGreen : r.share() >= 0.5 ? kBold : kYellow;
}

std::string table(const std::string& title, const std::vector<const Row*>& rows, const Paint& paint) {
  if (rows.empty()) return "";
  double whole = 0;
  for (const Row* r : rows)
    if (r->source == "step") whole += r->seconds * static_cast<double>(r->count);
  Table t{{"op", "shape", "type", "pass", "FLOP/B", "bound", "light"}, {}, "llllrlrrrrlrll"};
  if (rows.front()->measured()) t.columns.insert(t.columns.end(), {"time", "achieved", "of roof", ""});
  if (whole > 0) t.columns.insert(t.columns.end(), {"of step", ""});
  for (auto& name : t.columns) name = paint(kDim, name);
  t.columns.emplace_back();
  for (const Row* r : rows) {
    auto& words = t.rows.emplace_back(cells(*r));
    if (!r->measured()) continue;
    words.back() = paint(share_colour(*r), words.back());
    words.push_back(paint(kDim, bar(r->share())));
    if (whole > 0)
      words.insert(words.end(), {fmt::format("{:.1f} %", 100 * r->seconds * static_cast<double>(r->count) / whole),
                                 fmt::format("x{}", r->count)});
    if (r->fault()) words.push_back(paint(kRed, "ABOVE ITS ROOF: cost or measurement is wrong"));
  }
  return paint(kBold, title) + "\n" + table_text(t) + "\n";
}

std::string machine_text(const Report& report, const Paint& paint) {
  const auto& r = report.roofs;
  std::string text = paint(kBold, fmt::format("Roofline of {}, {}", report.title(), report.details())) + "\n";
  text += fmt::format("  arithmetic  f32 {}   bf16 {}   i8 {}\n", show_rate(r.f32, "FLOP/s"),
                      show_rate(r.bf16, "FLOP/s"), show_rate(r.i8, "OP/s"));
  text += fmt::format("  traffic     memory {}", show_rate(r.memory(), "B/s"));
  for (auto c = r.caches.rbegin(); c != r.caches.rend(); ++c)
    text += fmt::format("   {} {}", c->name, show_rate(std::max(c->read, c->copy), "B/s"));
  text += fmt::format(
      "\n  ridge       f32 {} FLOP/byte: below it memory bounds, above it arithmetic   bf16 {}   i8 {}\n\n",
      show_intensity(r.f32 / r.memory()), show_intensity(r.bf16 / r.memory()), show_intensity(r.i8 / r.memory()));
  return text;
}

std::string summary(const Report& report, const Paint& paint) {
  std::map<std::string, std::vector<double>> shares;
  for (const auto& r : report.rows)
    if (r.measured())
      shares[r.light.by_arithmetic()     ? "arithmetic"
             : r.light.bound == "memory" ? "memory"
                                         : "a cache"]
          .push_back(r.share());
  std::string text;
  for (auto& [bound, list] : shares) {
    const auto kernels = plural(std::ssize(list), "kernel");
    text += fmt::format("  {} bound by {}: median {:.0f} % of the roof\n", kernels, bound,
                        100 * compare::median(std::move(list)));
  }
  double light = 0, seconds = 0;
  for (const auto& r : report.step)
    light += r.light.seconds * static_cast<double>(r.count), seconds += r.seconds * static_cast<double>(r.count);
  if (seconds > 0)
    text += fmt::format("  the step takes {}, light {}: {:.0f} %\n", show_seconds(seconds), show_seconds(light),
                        100 * light / seconds);
  else if (light > 0) text += fmt::format("  the step at the speed of light: {}\n", show_seconds(light));
  if (const int n = report.faults())
    text += paint(kRed, fmt::format("  {} above their roof: a cost or a measurement is wrong there\n", n));
  return text;
}

}  // namespace

std::string to_text(const Report& report, bool colour) {
  const Paint paint(colour);
  std::vector<const Row*> seed, cases, step;
  for (const Row* r : report.all()) (r->source == "seed" ? seed : r->source == "step" ? step : cases).push_back(r);
  return machine_text(report, paint) + table("The seed", seed, paint) + table("Ops", cases, paint) +
         table("Records of a training step of " + report.config, step, paint) + summary(report, paint) +
         (report.disturbance.heavy() ? "These figures are " + report.disturbance.text() + "\n" : "");
}

}  // namespace hpcdl::lab::roofline
