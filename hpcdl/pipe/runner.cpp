#include "hpcdl/pipe/runner.h"

#include <fmt/format.h>

#include <array>
#include <set>
#include <utility>

#include "hpcdl/comm/ledger.h"
#include "hpcdl/core/error.h"
#include "hpcdl/ops/fill/fill.h"

namespace hpcdl::pipe {
namespace {

bool is_transfer(const Action& a) { return a.act == Act::send || a.act == Act::receive || joins_ranks(a.act); }

}  // namespace

/// Makes the memory, the instances and the steps of a rank.
class Runner::Builder {
 public:
  Builder(Runner& to, const Schedule& schedule, std::span<const StageParts> parts, const VocabularyParts* vocabulary,
          const Bindings& state, const std::shared_ptr<Buffer>& arena, Device device)
      : to_(to),
        schedule_(schedule),
        parts_(parts),
        vocabulary_(vocabulary),
        state_(state),
        arena_(arena),
        device_(device) {}

  void run() {
    const auto& actions = schedule_.of_rank[static_cast<std::size_t>(to_.group_.rank())];
    for (const auto& a : actions)
      if (a.act == Act::forward) frame_of_[{a.stage, a.micro}] = a.slot;
    lay_out();
    for (const auto& a : actions)
      if (computes(a.act) || is_transfer(a) || computes_share(a.act)) add(a);
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
    to_.memory_ =
        std::make_shared<Buffer>(pipe::frame_bytes(schedule_, parts_, to_.group_.rank(), vocabulary_), device_);
    at_ = to_.memory_->data();
    each([&](Memory& memory, const std::vector<FrameTensor>& list) {
      for (const auto& t : list) memory.emplace(t.name, place(t));
    });
    if (vocabulary_) lay_out_shares();
  }
  Tensor place(const FrameTensor& t) {
    const Tensor memory(at_, t.spec, device_);
    at_ += arena_size({.spec = t.spec, .name = ""});
    return memory;
  }
  /// As share_bytes() counts it.
  void lay_out_shares() {
    const auto& slots = schedule_.shares[static_cast<std::size_t>(rank())];
    const bool trains = !vocabulary_->gradient.name.empty();
    const auto add = [&](Act act, int count, const VocabularyParts::Share& share, const FrameTensor* arriving) {
      for (int i = 0; i < count; ++i) {
        auto& s = shares_[{pool_of(act), i}];
        for (const auto& t : share.tensors) s.memory.emplace(t.name, place(t));
        for (int r = 0; r < schedule_.ranks() && arriving; ++r)
          s.arriving.push_back(r == rank() ? s.memory.at(arriving->name) : place(*arriving));
      }
    };
    const auto arriving = [&](bool here, const FrameTensor& t) { return here ? &t : nullptr; };
    add(Act::lookup, slots.rows, vocabulary_->rows, arriving(on_first(), vocabulary_->sum_of_rows));
    const bool merges = vocabulary_->merge != nullptr;
    add(Act::logits, slots.logits, vocabulary_->head, arriving(on_last() && trains && !merges, vocabulary_->gradient));
    for (int i = 0; i < slots.logits && merges && on_last(); ++i)
      share(Act::logits, i).memory.emplace(vocabulary_->all_summands.name, place(vocabulary_->all_summands));
    if (trains) add(Act::lookup_gradient, slots.gradients, vocabulary_->gradients, nullptr);
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

  /// The instance of a program on a frame, or on a share of a vocabulary.
  Instance* instance(const StageParts::Part& part, const Memory& on, int slot) {
    auto& known = instances_[{part.get(), slot}];
    if (known) return known;
    auto bindings = state_;
    for (const auto& [name, memory] : on) bindings.bind(name, memory);
    to_.instances_.push_back(std::make_unique<Instance>(part, std::move(bindings), arena_, device_));
    return known = to_.instances_.back().get();
  }

  /// The program that adds to gradients, or the one that overwrites them if it is the first of its stage in a step.
  Instance* of_kind(const std::array<StageParts::Part, 2>& parts, const Memory& on, int slot) {
    const auto write = first_.insert(&parts).second ? Write::overwrite : Write::accumulate;
    return instance(parts[static_cast<std::size_t>(write)], on, slot);
  }

  void add(const Action& a) {
    const auto number = to_.steps_.size();
    Step step{.action = a};
    if (of_vocabulary(a.act)) fill_share(step, number);
    else if (is_transfer(a)) fill_transfer(step, number);
    else if (a.act == Act::forward) fill_forward(step);
    else fill_backward(step);
    to_.steps_.push_back(std::move(step));
  }

  void fill_transfer(Step& step, std::size_t number) {
    const auto& a = step.action;
    const auto& p = part(a.stage);
    const bool activation = carries_activation(a);
    const int peer = schedule_.forward_rank[static_cast<std::size_t>(a.peer)];
    const auto messages = [&](const Memory& memory, const std::vector<FrameTensor>& list) {
      std::vector<Message> out;
      for (const auto& x : tensors(memory, list)) out.push_back({x, peer});
      return out;
    };
    step.label = fmt::format("{} of stage {}, micro-batch {}", activation ? "activation" : "gradient",
                             a.act == Act::send ? a.stage : a.peer, a.micro);
    if (a.act == Act::send) {
      step.sent = messages(frame(a.stage, a.micro), activation ? p.to_next : p.gradients_to_before);
      sent_[{a.stage, frame_of_.at({a.stage, a.micro})}].push_back(number);
    } else if (activation) {
      const auto& place = arrivals_.at({a.stage, a.slot});
      step.received = messages(place, p.from_before);
      activations_[{a.stage, a.micro}] = {number, &place};
    } else {
      step.received = messages(frame(a.stage, a.micro), p.gradients_from_next);
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
    if (vocabulary_ && a.stage == 0) take_sum(step, Act::lookup, vocabulary_->sum_of_rows, memory);
    step.programs = {instance(part(a.stage).forward, memory, a.slot)};
    step.inputs = ends(memory, part(a.stage).inputs);
    step.outputs = ends(memory, part(a.stage).outputs);
  }

  void fill_backward(Step& step) {
    const auto& a = step.action;
    const auto& p = part(a.stage);
    const auto& memory = frame(a.stage, a.micro);
    if (gives_input_gradient(a.act)) {
      if (const auto it = gradients_.find({a.stage, a.micro}); it != gradients_.end()) step.awaits = {it->second};
      if (here(a.stage - 1))
        step.after = copies(frame(a.stage - 1, a.micro), frame(a.stage, a.micro), p.gradients_to_before);
      if (vocabulary_ && a.stage + 1 == schedule_.stages()) {
        if (vocabulary_->merge) merge(step, memory);
        else take_sum(step, Act::logits, vocabulary_->gradient, memory);
      }
      step.programs.push_back(of_kind(p.backward, memory, a.slot));
    }
    if (gives_weight_gradient(a.act) && p.weights[0]) step.programs.push_back(of_kind(p.weights, memory, a.slot));
  }

  // ---------------------------------------------------------------- shares of a vocabulary

  /// The memory of a share of a micro-batch.
  struct ShareMemory {
    Memory memory = {};
    std::vector<Tensor> arriving = {};                 // what is summed here, by rank; that of this rank is in `memory`
    std::optional<std::size_t> sent = {}, dealt = {};  // transfers that may still read it
  };
  int rank() const { return to_.group_.rank(); }
  bool on_first() const { return rank() == schedule_.first_rank(); }
  bool on_last() const { return rank() == schedule_.last_rank(); }
  /// The act that takes the memory in which an act works.
  static Act pool_of(Act act) {
    switch (act) {
      case Act::lookup:
      case Act::sum_rows: return Act::lookup;
      case Act::lookup_gradient:
      case Act::give_gradient: return Act::lookup_gradient;
      default: return Act::logits;
    }
  }
  ShareMemory& share(Act act, int slot) { return shares_.at({pool_of(act), slot}); }

  void fill_share(Step& step, std::size_t number) {
    const auto& a = step.action;
    auto& s = share(a.act, a.slot);
    const auto& v = *vocabulary_;
    if (joins_ranks(a.act)) step.label = fmt::format("{}, micro-batch {}", act_name(a.act), a.micro);
    switch (a.act) {
      case Act::lookup:
        slot_of_rows_[a.micro] = a.slot;
        await_sent(step, s);
        step.programs = {instance(v.lookup, s.memory, a.slot)};
        step.inputs = ends(s.memory, v.rows.inputs);
        break;
      case Act::sum_rows: collect(step, number, s, v.sum_of_rows, schedule_.first_rank()); break;
      case Act::give_hidden:
        slot_of_head_[a.micro] = a.slot;
        deal(step, number, s, v.hidden, schedule_.last_rank(), schedule_.stages() - 1);
        break;
      case Act::logits:
        await_exchange(step, Act::give_hidden);
        if (v.merge) await_sent(step, s);
        step.programs = {instance(v.logits, s.memory, a.slot)};
        step.inputs = ends(s.memory, v.head.inputs);
        break;
      case Act::combine:
        step.gathered = Copy{s.memory.at(v.all.name), s.memory.at(v.mine.name)};
        exchanges_[{a.act, a.micro}] = number;
        if (v.merge) give_summands(step, number, s);
        break;
      case Act::loss:
        await_exchange(step, Act::combine);
        if (!v.merge) await_sent(step, s);
        step.programs = {of_kind(v.loss, s.memory, a.slot)};
        if (on_last()) step.outputs = ends(s.memory, v.outputs);
        break;
      case Act::sum_gradients: collect(step, number, s, v.gradient, schedule_.last_rank()); break;
      case Act::give_gradient: deal(step, number, s, v.rows_gradient, schedule_.first_rank(), 0); break;
      case Act::lookup_gradient:
        await_exchange(step, Act::give_gradient);
        step.programs = {of_kind(v.lookup_gradient, s.memory, a.slot)};
        step.inputs = ends(s.memory, v.gradients.inputs);
        break;
      default: break;
    }
  }

  void await_exchange(Step& step, Act act) { step.awaits.push_back(exchanges_.at({act, step.action.micro})); }
  static void await_sent(Step& step, ShareMemory& s) {
    if (s.sent) step.awaits.push_back(*std::exchange(s.sent, std::nullopt));
  }
  std::vector<int> others() const {
    std::vector<int> list;
    for (int r = 0; r < schedule_.ranks(); ++r)
      if (r != rank()) list.push_back(r);
    return list;
  }

  /// All ranks send a summand to rank `root`.
  void collect(Step& step, std::size_t number, ShareMemory& s, const FrameTensor& t, int root) {
    exchanges_[{step.action.act, step.action.micro}] = number;
    if (rank() == root) {
      for (const int r : others()) step.received.push_back({s.arriving[static_cast<std::size_t>(r)], r});
    } else {
      step.sent = {{s.memory.at(t.name), root}};
      s.sent = number;
    }
  }
  /// The last rank gets what it makes the gradient of the input of the head of: that of all ranks, one after the other.
  void give_summands(Step& step, std::size_t number, ShareMemory& s) {
    const auto& t = vocabulary_->summands;
    const auto& mine = s.memory.at(t.name);
    if (!on_last()) {
      step.sent = {{mine, schedule_.last_rank()}};
      s.sent = number;
      return;
    }
    const auto& all = s.memory.at(vocabulary_->all_summands.name);
    const auto of_rank = [&](int r) { return Tensor(all.ptr<std::byte>() + r * mine.bytes(), mine.spec()); };
    step.before = {{of_rank(rank()), mine}};
    for (const int r : others()) step.received.push_back({of_rank(r), r});
  }
  /// That gradient, into the frame of the last stage, before its backward.
  void merge(Step& step, const Memory& to) {
    const int slot = slot_of_head_.at(step.action.micro);
    auto memory = share(Act::logits, slot).memory;
    memory.insert_or_assign(vocabulary_->gradient.name, to.at(vocabulary_->gradient.name));
    step.awaits.push_back(exchanges_.at({Act::combine, step.action.micro}));
    const int frames = schedule_.slots[static_cast<std::size_t>(step.action.stage)].frames;
    step.programs.push_back(instance(vocabulary_->merge, memory, slot * frames + step.action.slot));
  }
  /// Rank `root` sends all others a tensor of the frame of a stage.
  void deal(Step& step, std::size_t number, ShareMemory& s, const FrameTensor& t, int root, int stage) {
    exchanges_[{step.action.act, step.action.micro}] = number;
    const auto& memory = s.memory.at(t.name);
    if (rank() != root) {
      step.received = {{memory, root}};
      return;
    }
    if (s.dealt) step.awaits.push_back(*s.dealt);
    s.dealt = number;
    step.before = {{memory, frame(stage, step.action.micro).at(t.name)}};
    for (const int r : others()) step.sent.push_back({memory, r});
  }
  /// The sum of the summands of all ranks, in the order of the ranks, into a frame.
  void take_sum(Step& step, Act act, const FrameTensor& t, const Memory& to) {
    const bool rows = act == Act::lookup;
    step.awaits.push_back(exchanges_.at({rows ? Act::sum_rows : Act::sum_gradients, step.action.micro}));
    const auto& s = share(act, (rows ? slot_of_rows_ : slot_of_head_).at(step.action.micro));
    const auto& sum = to.at(t.name);
    step.before.push_back({sum, s.arriving.front()});
    for (std::size_t r = 1; r < s.arriving.size(); ++r) step.sums.push_back({sum, s.arriving[r]});
  }

  using Place = std::pair<int, int>;  // stage, and slot or micro-batch
  Runner& to_;
  const Schedule& schedule_;
  std::span<const StageParts> parts_;
  const VocabularyParts* vocabulary_;
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
  std::byte* at_ = nullptr;                                  // the end of what has been laid out
  std::map<std::pair<Act, int>, ShareMemory> shares_;        // by pool and slot
  std::map<std::int32_t, int> slot_of_rows_, slot_of_head_;  // by micro-batch
  std::map<std::pair<Act, std::int32_t>, std::size_t> exchanges_;
};

Runner::Runner(const Schedule& schedule, std::span<const StageParts> parts, const VocabularyParts* vocabulary,
               comm::Group group, const Bindings& state, const std::shared_ptr<Buffer>& arena, const Stream& s)
    : group_(std::move(group)), beside_(s.device(), s.pool()) {
  require(schedule.lowered() && !schedule.on_host && schedule.ranks() == group_.size() &&
              schedule.forward_rank == schedule.backward_rank && std::ssize(parts) == schedule.stages(),
          "pipe", "expected a lowered schedule for {} ranks that keep their stages, and the parts of its stages",
          group_.size());
  require(schedule.divides_vocabulary() == (vocabulary != nullptr) && (!vocabulary || !s.device().is_cuda()), "pipe",
          "expected the parts of a vocabulary with a schedule that divides one, on a CPU");
  Builder(*this, schedule, parts, vocabulary, state, arena, s.device()).run();
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
  for (const auto n : step.awaits) await(s, n);
  for (const auto& c : step.before) copy(s, c.to, c.from);
  auto& queue = s.device().is_cuda() ? beside_ : s;
  t.ready.record(s);
  t.ready.wait(queue);
  const comm::Label label(step.label);
  for (const auto& m : step.sent) t.works.push_back(group_.send(queue, m.memory, m.peer));
  for (const auto& m : step.received) t.works.push_back(group_.receive(queue, m.memory, m.peer));
  if (step.gathered) t.works.push_back(group_.all_gather(queue, step.gathered->to, step.gathered->from));
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
  for (const auto& c : step.sums) {
    const Grad sum[] = {Grad(c.to, Write::accumulate), Grad(c.from, Write::overwrite)};
    AddInto::run(s, sum, nullptr);
  }
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
