#include "hpcdl/pipe/schedule.h"

#include <fmt/format.h>

namespace hpcdl::pipe {

std::string_view act_name(Act act) {
  constexpr std::string_view names[kActs] = {"forward",
                                             "backward",
                                             "input gradient",
                                             "weight gradient",
                                             "send",
                                             "receive",
                                             "load",
                                             "store",
                                             "reduce",
                                             "update",
                                             "lookup",
                                             "logits",
                                             "loss",
                                             "lookup gradient",
                                             "sum of rows",
                                             "input of the head",
                                             "statistics of the logits",
                                             "sum of gradients",
                                             "gradient of the embedding"};
  return names[static_cast<int>(act)];
}

char act_letter(Act act) { return "FBIWSRLOXUEVTDPHCYQ"[static_cast<int>(act)]; }

int Schedule::rank_of(const Action& a) const {
  if (of_vocabulary(a.act)) return a.stage;
  const auto stage = static_cast<std::size_t>(a.stage);
  switch (a.act) {
    case Act::forward: return forward_rank[stage];
    case Act::send:
    case Act::receive: return carries_activation(a) ? forward_rank[stage] : backward_rank[stage];
    default: return backward_rank[stage];
  }
}

std::string text(const Action& a) {
  const auto micro = a.micro < 0 ? "" : fmt::format(", micro-batch {}", a.micro);
  switch (a.act) {
    case Act::send:
      return fmt::format("the send of {} from stage {} to stage {}{}",
                         carries_activation(a) ? "an activation" : "a gradient", a.stage, a.peer, micro);
    case Act::receive:
      return fmt::format("the receive of {} from stage {} by stage {}{}",
                         carries_activation(a) ? "an activation" : "a gradient", a.peer, a.stage, micro);
    default:
      return fmt::format("the {} of {} {}{}", act_name(a.act), of_vocabulary(a.act) ? "rank" : "stage", a.stage, micro);
  }
}

}  // namespace hpcdl::pipe
