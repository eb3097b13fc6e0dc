#include "hpcdl/core/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <system_error>
#include <utility>

namespace hpcdl {
namespace {

constexpr int kShortestBar = 8, kLongestBar = 40, kBarBeforeMoreFacts = 16;
constexpr auto kBetweenLines = std::chrono::seconds(10);

bool begins_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

/// Columns of UTF-8 text, one for each code point.
int width_of(std::string_view text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), begins_character));
}

std::string_view cut(std::string_view text, int columns) {
  std::size_t at = 0;
  for (; at < text.size(); ++at)
    if (begins_character(text[at]) && columns-- == 0) break;
  return text.substr(0, at);
}

void append(std::string& line, std::string_view part, std::string_view gap) {
  if (!part.empty()) line.append(line.empty() ? "" : gap).append(part);
}

/// All but the bar itself.
struct Words {
  std::string before, behind;
  int width(int gap) const {
    return width_of(before) + width_of(behind) + (before.empty() || behind.empty() ? 0 : gap);
  }
};

Words words_of(const Bar& b, std::size_t facts, bool brief, std::string_view gap) {
  Words w;
  append(w.before, b.what, gap);
  if (b.done >= 0 && !brief) append(w.before, fmt::format("{:3.0f}%", std::floor(100 * std::min(b.done, 1.0))), gap);
  for (std::size_t i = 0; i < std::min(facts, b.facts.size()); ++i)
    append(w.behind, brief && !b.facts[i].brief.empty() ? b.facts[i].brief : b.facts[i].text, gap);
  if (b.seconds_left < 0) return w;
  auto left = time_left(b.seconds_left);
  if (brief) std::erase(left, ' ');
  append(w.behind, brief ? left : fmt::format("{} left", left), gap);
  return w;
}

std::string repeated(std::string_view cell, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += cell;
  return out;
}

std::string drawn(double done, int cells, const BarStyle& style) {
  if (!style.unicode) {
    const int inner = cells - 2, full = static_cast<int>(done * inner);
    return fmt::format("[{:=<{}}{:-<{}}]", "", full, "", inner - full);
  }
  const int halves = static_cast<int>(done * 2 * cells);
  auto full = repeated("━", halves / 2);
  full.append(halves % 2 ? "╸" : "");
  const auto rest = repeated(style.colour ? "━" : "─", cells - halves / 2 - halves % 2);
  if (!style.colour) return full.append(rest);
  return fmt::format("\x1b[36m{}\x1b[0m\x1b[2m{}\x1b[0m", full, rest);
}

std::string with_bar(const Bar& b, int room, const BarStyle& style) {
  auto best = words_of(b, b.needed, false, "  ");
  const auto cells = [&](const Words& w) {  // a blank before the bar, two after it
    return room - width_of(w.before) - width_of(w.behind) - (w.before.empty() ? 0 : 1) - (w.behind.empty() ? 0 : 2);
  };
  if (cells(best) < kShortestBar) return "";
  for (std::size_t n = b.needed + 1; n <= b.facts.size(); ++n) {
    auto more = words_of(b, n, false, "  ");
    if (cells(more) < kBarBeforeMoreFacts) break;
    best = std::move(more);
  }
  const auto bar = drawn(std::clamp(b.done, 0.0, 1.0), std::min(cells(best), kLongestBar), style);
  return fmt::format("{}{}{}{}{}", best.before, best.before.empty() ? "" : " ", bar, best.behind.empty() ? "" : "  ",
                     best.behind);
}

}  // namespace

std::string time_left(double seconds) {
  if (!(seconds < 1e9)) return "?";
  const auto t = std::max<long long>(std::llround(std::ceil(seconds)), 1);
  constexpr long long kMinute = 60, kHour = 60 * kMinute, kDay = 24 * kHour;
  if (t < kMinute) return fmt::format("{} s", t);
  if (t < kHour) return fmt::format("{}m {:02}s", t / kMinute, t % kMinute);
  if (t < kDay) return fmt::format("{}h {:02}m", t / kHour, t % kHour / kMinute);
  return fmt::format("{}d {:02}h", t / kDay, t % kDay / kHour);
}

std::string parts_line(const std::vector<std::string>& parts, int columns) {
  std::string line;
  for (const auto& part : parts) {
    if (!line.empty() && columns > 0 && width_of(line) + 2 + width_of(part) > columns) break;
    append(line, part, "  ");
  }
  return line;
}

std::string bar_line(const Bar& b, const BarStyle& style) {
  const int room = std::max(style.columns - 1, 1);  // in the last column some terminals begin a new line
  if (b.done >= 0)
    if (auto line = with_bar(b, room, style); !line.empty()) return line;
  for (const auto& [brief, gap] : {std::pair{false, "  "}, {false, " "}, {true, " "}}) {
    const auto w = words_of(b, b.needed, brief, gap);
    std::string line = w.before;
    append(line, w.behind, gap);
    if (width_of(line) <= room) return line;
  }
  for (std::size_t n = b.needed;; --n) {
    const auto w = words_of(b, n, true, " ");
    std::string line = w.before;
    append(line, w.behind, " ");
    if (width_of(line) <= room || n == 0) return std::string(cut(line, room));
  }
}

void Work::show(std::string_view what, double share, std::vector<Fact> facts) {
  const auto now = Clock::now();
  if (!shown_ || what != what_) what_ = what, begin_ = said_ = now, shown_ = true;
  const double spent = seconds();
  const bool known = share > 0.02 && spent > 1;  // an earlier estimate means nothing
  const Bar bar{.what = what_,
                .done = share,
                .facts = std::move(facts),
                .needed = 1,
                .seconds_left = known && share < 1 ? spent * (1 - share) / share : -1};
  if (console_.bar) return console_.bar(&bar);
  if (!console_.line || now - said_ < kBetweenLines) return;
  said_ = now;
  std::vector<std::string> parts{what_};
  if (share >= 0) parts.push_back(fmt::format("{:.0f}%", std::floor(100 * share)));
  for (const auto& f : bar.facts) parts.push_back(f.text);
  if (bar.seconds_left >= 0) parts.push_back(fmt::format("{} left", time_left(bar.seconds_left)));
  console_.line(parts_line(parts, 0));
}

void Work::end() {
  if (std::exchange(shown_, false) && console_.bar) console_.bar(nullptr);
}

Waiting::Waiting(Console console, std::string what) : console_(std::move(console)), what_(std::move(what)) {
  if (!console_.bar && !console_.line) return;
  try {
    thread_ = std::thread([this, begin = Clock::now()] { watch(begin); });
  } catch (const std::system_error&) {}  // no thread is available: the work itself continues
}

void Waiting::watch(Clock::time_point begin) {
  const auto first = std::chrono::seconds(2), then = std::chrono::seconds(console_.bar ? 1 : 10);
  std::unique_lock lock(mutex_);
  for (auto next = begin + (console_.bar ? first : then); !over_cv_.wait_until(lock, next, [&] { return over_; });
       next += then) {
    const auto time = time_left(std::floor(seconds_since(begin)));
    const Bar bar{.what = what_, .facts = {{time}}, .needed = 1};
    if (console_.bar) console_.bar(&bar);
    else console_.line(fmt::format("{}: {} so far", what_, time));
  }
}

Waiting::~Waiting() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  over_cv_.notify_all();
  thread_.join();
  if (console_.bar) console_.bar(nullptr);
}

}  // namespace hpcdl
