#include "hpcdl/pipe/runner.h"

#include <fmt/format.h>

#include <array>
#include <set>
#include <utility>

#include "hpcdl/comm/ledger.h"
#include "hpcdl/core/error.h"

namespace hpcdl::pipe {
namespace {

bool is_transfer(const Action& a) { return a.act == Act::send || a.act == Act::receive; }

}  // namespace

/// Makes the memory, the instances and the steps of a rank.
class Runner::Builder {
 public:
  Builder(Runner& to, const Schedule& schedule, std::span<const StageParts> parts, const Bindings& state,
          const std::shared_ptr<Buffer>& arena, Device device)
      : to_(to), schedule_(schedule), parts_(parts), state_(state), arena_(arena), device_(device) {}

  void run() {
    const auto& actions = schedule_.of_rank[static_cast<std::size_t>(to_.group_.rank())];
    for (const auto& a : actions)
      if (a.act == Act::forward) frame_of_[{a.stage, a.micro}] = a.slot;
    lay_out();
    for (const auto& a : actions)
      if (computes(a.act) || is_transfer(a)) add(a);
  }

 private:
  const StageParts& part(int stage) const { return parts_[static_cast<std::size_t>(stage)]; }
  const StageSlots& slots(int stage) const { return schedule_.slots[static_cast<std::size_t>(stage)]; }
  bool here(int stage) const {
    return stage >= 0 && stage < schedule_.stages() &&
           schedule_.forward_rank[static_cast<std::size_t>(stage)] == to_.group_.rank();
  }

  /// Memory of all frames and arrivals of this rank.
  void lay_out() {
    const auto each = [&](auto&& f) {
      for (int stage = 0; stage < schedule_.stages(); ++stage) {
        if (!here(stage)) continue;
        for (int i = 0; i < slots(stage).frames; ++i) f(frames_[{stage, i}], part(stage).frame);
        for (int i = 0; i < slots(stage).activations; ++i) f(arrivals_[{stage, i}], part(stage).from_before);
      }
    };
    to_.memory_ = std::make_shared<Buffer>(pipe::frame_bytes(schedule_, parts_, to_.group_.rank()), device_);
    auto* at = to_.memory_->data();
    each([&](Memory& memory, const std::vector<FrameTensor>& list) {
      for (const auto& t : list) {
        memory.emplace(t.name, Tensor(at, t.spec, device_));
        at += arena_size({.spec = t.spec, .name = ""});
      }
    });
  }

  const Memory& frame(int stage, std::int32_t micro) const { return frames_.at({stage, frame_of_.at({stage, micro})}); }

  static std::vector<Tensor> tensors(const Memory& memory, const std::vector<FrameTensor>& list) {
    std::vector<Tensor> out;
    for (const auto& t : list) out.push_back(memory.at(t.name));
    return out;
  }
  static std::vector<PassTensor> ends(const Memory& memory, const std::vector<FrameEnd>& list) {
    std::vector<PassTensor> out;
    for (const auto& e : list) out.push_back({e.number, memory.at(e.name)});
    return out;
  }
  static std::vector<Copy> copies(const Memory& to, const Memory& from, const std::vector<FrameTensor>& list) {
    std::vector<Copy> out;
    for (const auto& t : list) out.push_back({to.at(t.name), from.at(t.name)});
    return out;
  }

  /// The instance of a program on a frame.
  Instance* instance(const StageParts::Part& part, int stage, int slot) {
    auto& known = instances_[{part.get(), slot}];
    if (known) return known;
    auto bindings = state_;
    for (const auto& [name, memory] : frames_.at({stage, slot})) bindings.bind(name, memory);
    to_.instances_.push_back(std::make_unique<Instance>(part, std::move(bindings), arena_, device_));
    return known = to_.instances_.back().get();
  }

  /// The program that adds to gradients, or the one that overwrites them if it is the first of its stage in a step.
  Instance* of_kind(const std::array<StageParts::Part, 2>& parts, const Action& a) {
    const auto write = first_.insert(&parts).second ? Write::overwrite : Write::accumulate;
    return instance(parts[static_cast<std::size_t>(write)], a.stage, a.slot);
  }

  void add(const Action& a) {
    const auto number = to_.steps_.size();
    Step step{.action = a};
    if (is_transfer(a)) fill_transfer(step, number);
    else if (a.act == Act::forward) fill_forward(step);
    else fill_backward(step);
    to_.steps_.push_back(std::move(step));
  }

  void fill_transfer(Step& step, std::size_t number) {
    const auto& a = step.action;
    const auto& p = part(a.stage);
    const bool activation = carries_activation(a);
    step.peer = schedule_.forward_rank[static_cast<std::size_t>(a.peer)];
    step.label = fmt::format("{} of stage {}, micro-batch {}", activation ? "activation" : "gradient",
                             a.act == Act::send ? a.stage : a.peer, a.micro);
    if (a.act == Act::send) {
      step.parcel = tensors(frame(a.stage, a.micro), activation ? p.to_next : p.gradients_to_before);
      sent_[{a.stage, frame_of_.at({a.stage, a.micro})}].push_back(number);
    } else if (activation) {
      const auto& place = arrivals_.at({a.stage, a.slot});
      step.parcel = tensors(place, p.from_before);
      activations_[{a.stage, a.micro}] = {number, &place};
    } else {
      step.parcel = tensors(frame(a.stage, a.micro), p.gradients_from_next);
      gradients_[{a.stage, a.micro}] = number;
    }
  }

  void fill_forward(Step& step) {
    const auto& a = step.action;
    const auto& memory = frame(a.stage, a.micro);
    step.awaits = std::exchange(sent_[{a.stage, a.slot}], {});  // the frame has been sent
    if (const auto it = activations_.find({a.stage, a.micro}); it != activations_.end()) {
      step.awaits.push_back(it->second.first);
      step.before = copies(memory, *it->second.second, part(a.stage).from_before);
    } else if (here(a.stage - 1)) {
      step.before = copies(memory, frame(a.stage - 1, a.micro), part(a.stage).from_before);
    }
    step.programs = {instance(part(a.stage).forward, a.stage, a.slot)};
    step.inputs = ends(memory, part(a.stage).inputs);
    step.outputs = ends(memory, part(a.stage).outputs);
  }

  void fill_backward(Step& step) {
    const auto& a = step.action;
    const auto& p = part(a.stage);
    if (gives_input_gradient(a.act)) {
      if (const auto it = gradients_.find({a.stage, a.micro}); it != gradients_.end()) step.awaits = {it->second};
      if (here(a.stage - 1))
        step.after = copies(frame(a.stage - 1, a.micro), frame(a.stage, a.micro), p.gradients_to_before);
      step.programs.push_back(of_kind(p.backward, a));
    }
    if (gives_weight_gradient(a.act) && p.weights[0]) step.programs.push_back(of_kind(p.weights, a));
  }

  using Place = std::pair<int, int>;  // stage, and slot or micro-batch
  Runner& to_;
  const Schedule& schedule_;
  std::span<const StageParts> parts_;
  const Bindings& state_;
  const std::shared_ptr<Buffer>& arena_;
  Device device_;
  std::map<Place, int> frame_of_;              // by stage and micro-batch
  std::map<Place, Memory> frames_, arrivals_;  // by stage and slot
  std::map<Place, std::vector<std::size_t>> sent_;
  std::map<Place, std::pair<std::size_t, const Memory*>> activations_;  // by stage and micro-batch: where they arrive
  std::map<Place, std::size_t> gradients_;
  std::map<std::pair<const Planned*, int>, Instance*> instances_;
  std::set<const void*> first_;
};

Runner::Runner(const Schedule& schedule, std::span<const StageParts> parts, comm::Group group, const Bindings& state,
               const std::shared_ptr<Buffer>& arena, const Stream& s)
    : group_(std::move(group)), beside_(s.device(), s.pool()) {
  require(schedule.lowered() && !schedule.on_host && schedule.ranks() == group_.size() &&
              schedule.forward_rank == schedule.backward_rank && std::ssize(parts) == schedule.stages(),
          "pipe", "expected a lowered schedule for {} ranks that keep their stages, and the parts of its stages",
          group_.size());
  Builder(*this, schedule, parts, state, arena, s.device()).run();
  transfers_.resize(steps_.size());
}

Runner::~Runner() {
  if (next_ > 0) group_.abandon("it left the schedule of its stages");  // the others would wait for it
  for (auto& t : transfers_)
    for (auto& w : t.works) {
      try {
        w.wait();                        // its memory goes away
      } catch (const std::exception&) {  // the first error is on its way
      }
    }
}

/// Begins a transfer after everything that is queued. On a GPU these are one chain, in the order that all ranks share.
void Runner::transfer(Stream& s, std::size_t number) {
  const auto& step = steps_[number];
  auto& t = transfers_[number];
  auto& queue = s.device().is_cuda() ? beside_ : s;
  t.ready.record(s);
  t.ready.wait(queue);
  const comm::Label label(step.label);
  for (const auto& x : step.parcel)
    t.works.push_back(step.action.act == Act::send ? group_.send(queue, x, step.peer)
                                                   : group_.receive(queue, x, step.peer));
  t.done.record(queue);
}

void Runner::await(Stream& s, std::size_t number) {
  auto& t = transfers_[number];
  for (auto& w : t.works) w.wait();
  t.works.clear();
  t.done.wait(s);
}

void Runner::compute(Stream& s, const Step& step, const Run& run) {
  for (const auto number : step.awaits) await(s, number);
  for (const auto& c : step.before) copy(s, c.to, c.from);
  for (auto* exe : step.programs) run(*exe, step.action.micro, step.inputs, step.outputs);
  for (const auto& c : step.after) copy(s, c.to, c.from);
}

void Runner::advance(Stream& s, std::int32_t micros, const Run& run) {
  for (; next_ < steps_.size() && steps_[next_].action.micro < micros; ++next_) {
    if (is_transfer(steps_[next_].action)) transfer(s, next_);
    else compute(s, steps_[next_], run);
  }
  if (next_ < steps_.size()) return;
  for (std::size_t i = 0; i < steps_.size(); ++i)
    if (is_transfer(steps_[i].action)) await(s, i);
  next_ = 0;
}

std::vector<Instance*> Runner::programs() const {
  std::vector<Instance*> list;
  for (const auto& step : steps_) list.insert(list.end(), step.programs.begin(), step.programs.end());
  return list;
}

}  // namespace hpcdl::pipe
