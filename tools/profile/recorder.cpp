#include "tools/profile/recorder.h"

#include <sys/resource.h>

namespace hpcdl::lab {

namespace {

std::int64_t interruptions() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
}

}  // namespace

Recorder::Recorder(std::function<Look(std::int64_t)> policy, std::function<void(StepTrace&&)> sink)
    : policy_(std::move(policy)), sink_(std::move(sink)) {}

void Recorder::begin_step(std::int64_t step) {
  look_ = policy_(steps_++);
  if (look_ == Look::away) return;
  trace_ = {};
  trace_.step = step;
  trace_.recorded = look_ == Look::record;
  if (trace_.recorded && timer_) timer_->begin();
  trace_.interruptions = -interruptions();
  trace_.begin = now_ns();
}

void Recorder::end_step(std::int64_t) {
  if (look_ == Look::away) return;
  trace_.end = now_ns();
  trace_.interruptions += interruptions();
  const bool whole = look_ != Look::record || !timer_ || timer_->finish(trace_);
  look_ = Look::away;
  if (whole) sink_(std::move(trace_));
}

void Recorder::begin(train::Stage stage) {
  stage_ = stage;
  if (look_ == Look::record) trace_.stages.push_back({stage, now_ns(), 0});
}

void Recorder::end(train::Stage) {
  if (look_ == Look::record) trace_.stages.back().end = now_ns();
}

int Recorder::program_of(const Instance& exe, Device device) {
  for (std::size_t i = 0; i < programs_.size(); ++i)
    if (programs_[i].identity == &exe) return static_cast<int>(i);
  programs_.push_back(
      {&exe, stage_, exe.program(), exe.plan(), live_bytes(exe.program(), exe.plan()), device.is_cuda()});
  return static_cast<int>(programs_.size()) - 1;
}

void Recorder::run(const Instance& exe, Stream& s) {
  if (!timer_) timer_ = record_timer(s.device()), look_ == Look::record ? timer_->begin() : void();
  if (look_ == Look::away)
    program_of(exe, s.device()), timer_->prepare(exe, s);  // during warm-up, not in a measured step
  if (look_ != Look::record) return exe.run(s);
  threads_ = s.pool().threads();
  auto& run = trace_.runs.emplace_back();
  run.program = program_of(exe, s.device());
  timer_->run(exe, s, run);
}

std::vector<std::int64_t> live_bytes(const Program& program, const Plan& plan) {
  std::vector<std::int64_t> live(program.records.size() + 1);
  for (std::size_t s = 0; s < program.slots.size(); ++s) {
    if (plan.offset[s] < 0) continue;
    const auto size = arena_size(program.slots[s]);
    live[static_cast<std::size_t>(plan.lifetime[s].first)] += size;
    live[static_cast<std::size_t>(plan.lifetime[s].last) + 1] -= size;
  }
  for (std::size_t r = 1; r < live.size(); ++r) live[r] += live[r - 1];
  live.pop_back();
  return live;
}

}  // namespace hpcdl::lab
