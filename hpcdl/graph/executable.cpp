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
  crossings_ = crossings(program_, resolved_);
}

Tensor Executable::resolve(const Operand& o) const {
  if (o.slot < 0) return {};
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
  walk(s);
}

/// Every record on its stream, behind what it must wait for. All of it stands in line behind `s` and in front of what
/// comes next there.
void Executable::walk(Stream& s) const {
  if (crossings_.streams == 1) {
    for (const auto& step : steps_) step.run(s, step.operands, step.args);
    return;
  }
  if (owner_ != s.native()) {
    own_.clear(), beside_.clear();
    for (int i = 1; i < crossings_.streams; ++i) {
      own_.emplace_back(s.device(), s.pool());
      beside_.push_back(Stream::borrowed(s.device(), own_.back().native(), s.pool(), s.kernel_params()));
    }
    owner_ = s.native();
  }
  events_.resize(steps_.size() + 1);
  auto& start = events_.back();
  start.record(s);
  for (std::size_t i = 0; i < beside_.size(); ++i)
    if (crossings_.last[i] >= 0) start.wait(beside_[i]);
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const auto stream = program_.records[i].stream;
    auto& queue = stream == 0 ? s : beside_[stream - 1u];
    for (int record : crossings_.waits[i]) events_[static_cast<std::size_t>(record)].wait(queue);
    steps_[i].run(queue, steps_[i].operands, steps_[i].args);
    if (crossings_.signals[i]) events_[i].record(queue);
  }
  for (int record : crossings_.last)
    if (record >= 0) events_[static_cast<std::size_t>(record)].wait(s);
}

void Executable::capture(Stream& s) {
  if (!s.device().is_cuda() || steps_.empty()) return;
  Capture::begin(s);
  walk(s);
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
  require(o.slot >= 0 && o.slot < std::ssize(program_.slots), "program",
          "expected a variable of this program, got an absent one or one of another");
  const auto& slot = program_.slots[static_cast<std::size_t>(o.slot)];
  require(slot.kind != SlotKind::temp, "program",
          "\"{}\" is temporary: keep() it while recording to read it after a run", slot.name);
  require(slot.kind == SlotKind::external || plan_.offset[static_cast<std::size_t>(o.slot)] >= 0, "program",
          "\"{}\" is touched by no record, so it has no memory", slot.name);
  return resolve(o);
}

std::span<const Grad> Executable::operands(int record) const {
  const auto& r = program_.records[static_cast<std::size_t>(record)];
  return {resolved_.data() + r.operands, r.operand_count};
}

}  // namespace hpcdl
