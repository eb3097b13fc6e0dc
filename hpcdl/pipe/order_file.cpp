#include "hpcdl/pipe/order_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "hpcdl/core/error.h"
#include "hpcdl/io/file.h"
#include "hpcdl/io/json.h"
#include "hpcdl/pipe/generate.h"

namespace hpcdl::pipe {
namespace {

constexpr std::int64_t kMostFileBytes = std::int64_t{64} << 20;
constexpr int kMostStages = kMostRanks * kMostChunks;

/// A number at the begin of `text`, which is removed; none if there is none below `limit`.
std::optional<int> take_number(std::string_view& text, int limit) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0 || value >= limit) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

std::optional<Act> act_of(char letter) {
  for (const Act act : {Act::forward, Act::backward, Act::input_gradient, Act::weight_gradient})
    if (act_letter(act) == letter) return act;
  return std::nullopt;
}

class Reader {
 public:
  explicit Reader(std::string_view where) : where_(where) {}

  void line(std::string_view line) {
    ++number_;
    line = line.substr(0, line.find('#'));
    std::vector<Action> actions;
    while (true) {
      line.remove_prefix(std::min(line.find_first_not_of(", \t\r"), line.size()));
      if (line.empty()) break;
      const auto end = std::min(line.find_first_of(", \t\r"), line.size());
      actions.push_back(action(line.substr(0, end)));
      line.remove_prefix(end);
    }
    if (actions.empty()) return;
    if (s_.ranks() == kMostRanks)
      fail_usage("pipe", "{}, line {}: expected one line for each of at most {} ranks", where_, number_, kMostRanks);
    const auto rank = static_cast<std::int16_t>(s_.ranks());
    for (const auto& a : actions) {
      const auto stage = static_cast<std::size_t>(a.stage);
      if (stage >= s_.forward_rank.size()) s_.forward_rank.resize(stage + 1, -1);
      if (a.act == Act::forward && s_.forward_rank[stage] < 0) s_.forward_rank[stage] = rank;
      s_.micros = std::max(s_.micros, a.micro + 1);
    }
    s_.of_rank.push_back(std::move(actions));
  }

  Schedule finish() {
    if (s_.of_rank.empty()) fail_usage("pipe", "{}: expected one line of actions for each rank, found none", where_);
    for (std::size_t stage = 0; stage < s_.forward_rank.size(); ++stage)
      if (s_.forward_rank[stage] < 0)
        fail_usage("pipe", "{}: no rank computes the forward of stage {}, but there are stages 0 to {}", where_, stage,
                   s_.stages() - 1);
    if (const auto cells = std::int64_t{s_.stages()} * s_.micros; cells > kMostCells)
      fail_usage("pipe", "{}: {} stages and {} micro-batches are too many: expected at most {} forwards", where_,
                 s_.stages(), s_.micros, kMostCells);
    s_.backward_rank = s_.forward_rank;
    return std::move(s_);
  }

 private:
  Action action(std::string_view word) const {
    auto rest = word;
    const auto stage = take_number(rest, kMostStages);
    const auto act = stage && !rest.empty() ? act_of(rest.front()) : std::nullopt;
    if (act) rest.remove_prefix(1);
    const auto micro = act ? take_number(rest, kMostMicros) : std::nullopt;
    if (!micro || !rest.empty())
      fail_usage("pipe",
                 "{}, line {}: expected an action such as 1F0: a stage below {}, one of F B I W, and a micro-batch "
                 "below {}; found {}. Leave out sends and receives: they are added",
                 where_, number_, kMostStages, kMostMicros, io::shown(word));
    return {.act = *act, .stage = static_cast<std::int16_t>(*stage), .micro = *micro};
  }

  std::string_view where_;
  int number_ = 0;
  Schedule s_;
};

}  // namespace

Schedule parse_order(std::string_view text, std::string_view where) {
  Reader reader(where);
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find('\n', at), text.size());
    reader.line(text.substr(at, end - at));
    at = end + 1;
  }
  return reader.finish();
}

Schedule read_order(const std::filesystem::path& file) {
  return parse_order(io::read_file(file, kMostFileBytes), file.string());
}

std::string order_text(const Schedule& schedule) {
  std::string text;
  for (const auto& list : schedule.of_rank) {
    std::string line;
    for (const auto& a : list)
      if (computes(a.act))
        line += fmt::format("{}{}{}{}", line.empty() ? "" : ",", a.stage, act_letter(a.act), a.micro);
    text += line + '\n';
  }
  return text;
}

}  // namespace hpcdl::pipe
