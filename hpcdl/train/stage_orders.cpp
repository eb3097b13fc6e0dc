#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>
#include <string>

#include "hpcdl/core/error.h"
#include "hpcdl/io/crc32c.h"
#include "hpcdl/parallel/agreement.h"
#include "hpcdl/pipe/check.h"
#include "hpcdl/pipe/generate.h"
#include "hpcdl/pipe/order_file.h"
#include "hpcdl/pipe/vocabulary.h"
#include "hpcdl/train/stages.h"

namespace hpcdl::train {
namespace {

pipe::Schedule generated(const StageOptions& o) {
  const auto& kind = pipe::schedule_kind(o.schedule);
  auto orders =
      pipe::make_schedule(kind, {.ranks = o.group.size(), .chunks = o.chunks, .micros = o.micros, .ahead = o.barriers});
  if (orders.on_host)
    fail_usage(
        "pipe",
        "parallel.schedule = \"{}\" keeps stages in host memory, which hpcdl train does not do yet: choose 1f1b, "
        "interleaved, zero_bubble, zbv or gpipe",
        o.schedule);
  return orders;
}

/// What training asks of an order beside what any rank can run. It adds gradients and updates running statistics in
/// place, and with one order of micro-batches all schedules give the same bits.
void check_order(const StageOptions& o, const pipe::Schedule& orders) {
  const auto refuse = [&](const std::string& what) {
    fail_usage("pipe", "parallel.order = \"{}\": {}", o.order, what);
  };
  if (orders.ranks() != o.group.size())
    refuse(
        fmt::format("it has the orders of {} ranks, but parallel.pp = {}: set parallel.pp = {}, or write a line for "
                    "each of {} ranks",
                    orders.ranks(), o.group.size(), orders.ranks(), o.group.size()));
  const auto refuse_orders = [&](const std::string& what) {
    refuse(
        fmt::format("{}. Each stage needs one forward (F) and one backward (B, or I and then W) of each micro-batch "
                    "on one rank, as in the `order` of `hpcdl pipe show --schedule 1f1b --stages {} --micros {} "
                    "--json`",
                    what, o.group.size(), o.micros));
  };
  if (const auto wrong = pipe::faults(orders, 1); !wrong.empty()) refuse_orders(wrong.front());
  if (const auto cycle = pipe::deadlock(orders, pipe::Wiring::links); !cycle.empty())
    refuse_orders(
        fmt::format("it is a deadlock: {}, which waits for the first", fmt::join(cycle, "; which waits for ")));
  if (orders.micros != o.micros)
    refuse(fmt::format("its step has {} micro-batch{}, but train.accumulate = {}: set train.accumulate = {}",
                       orders.micros, orders.micros == 1 ? "" : "es", o.micros, orders.micros));
  if (const auto early = pipe::out_of_turn(orders); !early.empty())
    refuse(
        fmt::format("{}: a stage adds gradients in the order of micro-batches, so that all schedules give the same "
                    "bits: swap the two",
                    early));
}

}  // namespace

pipe::Schedule stage_orders(const StageOptions& o) {
  const auto with_passes = [&](pipe::Schedule orders) {
    return o.barriers > 0 ? pipe::with_vocabulary(orders, {.barriers = o.barriers, .tied = o.tied}) : orders;
  };
  if (o.order.empty()) return with_passes(generated(o));
  auto orders = pipe::read_order(o.order);
  const parallel::Fact fact{fmt::format("the checksum of the order in \"{}\"", o.order),
                            fmt::format("{:08x}", io::crc32c(pipe::order_text(orders)))};
  parallel::expect_agreement(o.world, std::span(&fact, 1));
  check_order(o, orders);
  return with_passes(std::move(orders));
}

}  // namespace hpcdl::train
