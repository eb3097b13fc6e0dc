#include "hpcdl/train/dropped_tokens.h"

#include <span>

#include "hpcdl/ops/exchange/exchange.h"
#include "hpcdl/ops/expert_exchange/expert_exchange.h"

namespace hpcdl::train {

DroppedTokens::DroppedTokens(Device device, bool described) {
  if (described) number_.tensor = Tensor(nullptr, ExpertDropped::kSum, device);
  else number_ = OwnedTensor(ExpertDropped::kSum, device);
}

void DroppedTokens::record(Graph& g, const Var& of_pass, Write write) const {
  const bool first = write == Write::overwrite;
  const Operand sum = first ? write_operand(constant(g)) : update_operand(constant(g));
  if (of_pass) {
    const Operand pair[] = {sum, read_operand(of_pass)};
    g.emit<PassOn>(pair, nullptr, 0, {}, Phase::forward);
  } else if (first) {
    emit_op<Fill>(g, std::span(&sum, 1), {}, Phase::forward);
  }
}

void DroppedTokens::record_update(Graph& g, const Axis& ranks) const {
  const Operand sum[] = {update_operand(constant(g))};
  emit_op<AllReduce>(g, sum, {ranks}, Phase::update);
  record_skip_if_dropped(g, constant(g));
}

}  // namespace hpcdl::train
