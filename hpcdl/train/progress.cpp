#include "hpcdl/train/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "hpcdl/core/units.h"

namespace hpcdl::train {

namespace {

constexpr auto kBetweenLines = std::chrono::seconds(2);

/// "12.3K"
std::string brief_count(double n) {
  auto text = format_count(n);
  const auto point = text.find('.');
  if (point != std::string::npos) text.erase(point + 2, 1);
  return text;
}

std::string_view words_of(std::string_view stage) {
  return stage == "read" ? "counting words" : stage == "merge" ? "learning tokens" : "tokenizing";
}

}  // namespace

std::string progress_line(const StepNumbers& n, int columns) {
  std::vector<std::string> parts{fmt::format("step {}/{}", n.step, n.steps), fmt::format("loss {:.4f}", n.loss)};
  if (n.accuracy >= 0) parts.push_back(fmt::format("accuracy {:.2f}%", 100 * n.accuracy));
  parts.push_back(fmt::format("{} {}", format_count(n.per_second), n.unit));
  const auto time = n.step < n.steps ? time_left(n.seconds_left) + " left" : "in " + time_left(n.seconds);
  const auto fits = [&] {
    auto all = parts;
    all.push_back(time);
    return columns <= 0 || parts_line(all, 0).size() <= static_cast<std::size_t>(columns);
  };
  const auto wanted = parts.size();
  while (parts.size() > 2 && !fits()) parts.pop_back();
  if (!fits()) return fmt::format("{}/{}  {:.3f}  {}", n.step, n.steps, n.loss, time);
  parts.push_back(time);
  if (parts.size() <= wanted) return parts_line(parts, columns);
  if (n.epoch >= 0) parts.push_back(fmt::format("epoch {:.2f}", n.epoch));
  parts.push_back(fmt::format("lr {:.2e}", n.lr));
  parts.push_back(std::isfinite(n.grad_norm) ? fmt::format("norm {:.2f}", n.grad_norm) : "norm not finite");
  if (n.sol_percent >= 0) parts.push_back(fmt::format("{:.0f}% of light", n.sol_percent));
  if (n.comm_percent >= 0)
    parts.push_back(fmt::format("comm {:.0f}% ({:.0f}% hidden)", n.comm_percent, n.hidden_percent));
  parts.push_back(fmt::format("data {:.1f}%", n.data_wait_percent));
  return parts_line(parts, columns);
}

Bar progress_bar(const StepNumbers& n) {
  Bar b{.done = static_cast<double>(n.step) / static_cast<double>(std::max<std::int64_t>(n.steps, 1)), .needed = 3};
  const auto steps = fmt::format("{}/{}", n.step, n.steps);
  b.facts = {{"step " + steps, steps},
             {fmt::format("loss {:.4f}", n.loss), fmt::format("loss {:.3f}", n.loss)},
             {fmt::format("{} {}", format_count(n.per_second), n.unit), brief_count(n.per_second) + "/s"}};
  if (n.accuracy >= 0) b.facts.push_back({fmt::format("accuracy {:.2f}%", 100 * n.accuracy)});
  if (n.epoch >= 0) b.facts.push_back({fmt::format("epoch {:.2f}", n.epoch)});
  b.facts.push_back({fmt::format("lr {:.2e}", n.lr)});
  b.facts.push_back({std::isfinite(n.grad_norm) ? fmt::format("norm {:.2f}", n.grad_norm) : "norm not finite"});
  if (n.step < n.steps) b.seconds_left = n.seconds_left;
  return b;
}

data::OnProgress tokenize_progress(const Console& console) {
  struct Begun {
    std::string name = {};
    Clock::time_point begin = {};
  };
  return [work = std::make_shared<Work>(console), stage = Begun()](const data::TokenizeProgress& p) mutable {
    if (stage.name != p.stage) stage = {std::string(p.stage), Clock::now()};
    const double seconds = seconds_since(stage.begin), done = static_cast<double>(p.done);
    std::vector<Fact> facts;
    if (seconds > 0.05)  // an earlier rate means nothing
      facts.push_back(
          {p.stage == "merge" ? format_count(done / seconds) + " tokens/s" : format_bytes(done / seconds) + "/s"});
    work->show(words_of(p.stage), p.total > 0 ? done / static_cast<double>(p.total) : 1, std::move(facts));
    if (p.done >= p.total) work->end();
  };
}

void Progress::show(const Bar& bar) {
  if (!console_.bar) return;
  console_.bar(&bar);
  drawn_ = true;
}

void Progress::end_bar() {
  if (std::exchange(drawn_, false)) console_.bar(nullptr);
}

void Progress::stay(const StepNumbers& n) {
  const auto now = Clock::now();
  const bool last = n.step >= n.steps;
  if (!last && last_ != Clock::time_point{} && now - last_ < kBetweenLines) return;
  last_ = now;
  if (last) end_bar();
  say(progress_line(n, console_.columns ? console_.columns() : 0));
}

void Progress::say_lines(std::string_view text) {
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    say(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

void Progress::say(std::string_view line) {
  if (console_.line) console_.line(line);
}

}  // namespace hpcdl::train
