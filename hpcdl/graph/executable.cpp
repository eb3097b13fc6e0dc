#include "hpcdl/graph/executable.h"

#include "hpcdl/core/error.h"

namespace hpcdl {

Executable::Executable(Program program, std::shared_ptr<Buffer> arena, Device device)
    : program_(std::move(program)), plan_(hpcdl::plan(program_)), arena_(std::move(arena)) {
  if (!arena_ || arena_->bytes() < plan_.arena_bytes || arena_->device() != device)
    arena_ = std::make_shared<Buffer>(plan_.arena_bytes, device);
  resolved_.reserve(program_.operands.size());
  for (const auto& o : program_.operands)
    resolved_.emplace_back(resolve(o), o.access == Access::update ? Write::accumulate : Write::overwrite);
  steps_.reserve(program_.records.size());
  for (const auto& r : program_.records)
    steps_.push_back({r.run, resolved_.data() + r.operands, program_.args.data() + r.args});
}

Tensor Executable::resolve(const Operand& o) const {
  if (o.slot < 0) return {};
  if (o.spec.dtype == DType::f16 && !arena_->device().is_cuda()) refuse_f16_on_cpu();
  const auto& slot = program_.slots[static_cast<std::size_t>(o.slot)];
  require(slot.kind != SlotKind::external || slot.device == arena_->device(), "program",
          "\"{}\" lies on another device than the program runs on: move the model there before recording", slot.name);
  auto* base = slot.kind == SlotKind::external ? static_cast<std::byte*>(slot.data)
                                               : arena_->data() + plan_.offset[static_cast<std::size_t>(o.slot)];
  return Tensor(base + o.offset * dtype_bytes(o.spec.dtype), o.spec, o.strides, arena_->device());
}

void Executable::run_queued(Stream& s) const {
  s.push_params();
  if (capture_) return capture_.launch(s);
  for (const auto& step : steps_) step.run(s, step.operands, step.args);
}

void Executable::capture(Stream& s) {
  if (!s.device().is_cuda() || steps_.empty()) return;
  Capture::begin(s);
  for (const auto& step : steps_) step.run(s, step.operands, step.args);
  capture_ = Capture::end(s);
}

void Executable::run(Stream& s, int begin, int end, const std::function<void(int)>& after) const {
  s.push_params();
  for (int i = begin; i < end; ++i) {
    const auto& step = steps_[static_cast<std::size_t>(i)];
    step.run(s, step.operands, step.args);
    if (after) after(i);
  }
}

Tensor Executable::tensor(const Var& v) const {
  const Operand o = v.operand();
  const auto& slot = program_.slots[static_cast<std::size_t>(o.slot)];
  require(slot.kind != SlotKind::temp, "program", "\"{}\" is temporary: keep() it while recording to read it after a run",
          slot.name);
  require(slot.kind == SlotKind::external || plan_.offset[static_cast<std::size_t>(o.slot)] >= 0, "program",
          "\"{}\" is touched by no record, so it has no memory", slot.name);
  return resolve(o);
}

std::span<const Grad> Executable::operands(int record) const {
  const auto& r = program_.records[static_cast<std::size_t>(record)];
  return {resolved_.data() + r.operands, r.operand_count};
}

}  // namespace hpcdl
