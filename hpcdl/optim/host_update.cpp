#include "hpcdl/optim/host_update.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "hpcdl/core/clock.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/host_call.h"
#include "hpcdl/core/timed_event.h"
#include "hpcdl/graph/move.h"
#include "hpcdl/ops/cast/cast.h"
#include "hpcdl/ops/many_tensors.h"
#include "hpcdl/program/check.h"
#include "hpcdl/program/emit.h"

namespace hpcdl {
namespace {

constexpr std::string_view kName = "host update";
constexpr std::size_t kStages = 3;  // one for each of: copied to, updated, copied from

/// Operand: memory on the host that receives the parameters of the step, with the factor of clipping.
struct ParamsToHost {
  static constexpr std::string_view name = "step_params.to_host";
  struct RecordArgs {
    std::int64_t unused = 0;
  };
  static void check_record(const RawRecord& r) {
    r.require_count(1);
    require_spec(name, "their place", r.contiguous(0), {{sizeof(StepParams)}, DType::u8});
  }
  static void run(Stream& s, const Grad* t, const void*) {
    if (s.device().is_cuda()) copy_to_pinned(s, t[0].data(), View(s.kernel_params(), t[0].spec(), s.device()));
    else std::memcpy(t[0].data(), &s.params(), sizeof(StepParams));
  }
};

/// The arguments of HostUpdate::Update; one byte per tensor follows, as in those of AdamW.
struct UpdateArgs : Bound {
  detail::AdamWRecord update;
};
static_assert(sizeof(UpdateArgs) == sizeof(Bound) + sizeof(detail::AdamWRecord));

/// Copies are not written by an update that is skipped, but their stage is copied to the device in any case.
void round_copies(Stream& s, const Grad* tensors, std::int64_t count) {
  for (const Grad* t = tensors; t != tensors + count * AdamW::kOperands; t += AdamW::kOperands)
    if (t[4]) Cast::forward(s, t[4], t[0], {t[4].dtype()});
}

void update_on_host(Pool& pool, const Grad* operands, const UpdateArgs& args) {
  auto params = *operands[0].ptr<const StepParams>();
  Stream host(pool, &params);
  if (params.skip) round_copies(host, operands + 1, args.update.count);
  else AdamW::run(host, operands + 1, &args.update);
}

std::int64_t padded(std::int64_t n) {
  constexpr std::int64_t kAlign = 64;  // more than any kernel asks for
  return (n + kAlign - 1) / kAlign * kAlign;
}
std::int64_t extent_of(const UpdateGroup& group) { return group.back().place + group.back().count; }

/// Each takes at most `most` elements in memory, a multiple of kTensorBlock. Pieces begin at such multiples, too.
std::vector<UpdateGroup> groups_of(std::span<const MovedTensor> tensors, std::int64_t most) {
  std::vector<UpdateGroup> groups;
  std::int64_t left = 0;
  for (const auto& t : tensors)
    for (std::int64_t at = 0, end = t.value->memory.size(); at < end;) {
      const auto n = end - at <= left ? end - at : left / kTensorBlock * kTensorBlock;
      if (n == 0) {
        groups.emplace_back(), left = most;
        continue;
      }
      groups.back().push_back({&t, at, n, most - left});
      at += n, left -= padded(n);
    }
  return groups;
}

Tensor slice_of(const Tensor& t, std::int64_t begin, std::int64_t count) {
  const Spec spec{{count}, t.dtype()};
  return Tensor(t.data() ? t.ptr<std::byte>() + begin * dtype_bytes(t.dtype()) : nullptr, spec, t.device());
}

}  // namespace

/// Operands: the parameters of the step, then those of AdamW, all on the host.
struct HostUpdate::Update {
  static constexpr std::string_view name = "adamw.host";
  using RecordArgs = UpdateArgs;
  static void check_record(const RawRecord& r) {
    const auto count = r.args<UpdateArgs>().update.count;
    r.args<UpdateArgs>(count);  // the decay flags follow
    r.require_count(1 + count * AdamW::kOperands);
    require_spec(name, "the parameters of the step", r.contiguous(0), {{sizeof(StepParams)}, DType::u8});
    for (std::size_t i = 1; i < r.count(); i += AdamW::kOperands)
      detail::require_adamw(r.contiguous(i), r.contiguous(i + 1), r.contiguous(i + 2), r.contiguous(i + 3),
                            r.contiguous(i + 4));
  }
  static void run(Stream& s, const Grad* t, const void* args) {
    const auto& a = *static_cast<const UpdateArgs*>(args);
    if (s.device().is_cuda()) static_cast<const HostUpdate*>(a.at)->queue(s, t, args);
    else update_on_host(s.pool(), t, a);
  }
};

struct HostUpdate::Call {
  Pool& pool;
  const Grad* operands;
  const void* args;  // UpdateArgs
};

HostUpdate::HostUpdate(Device device, DType copies, int interleave, std::int64_t group, int threads)
    : device_(device), interleave_(interleave), group_(group), stages_(kStages) {
  require(interleave >= 0 && group > 0 && group % kTensorBlock == 0, "optimizer",
          "expected an interleave of at least 0 and groups of a multiple of {} elements, got {} and {}", kTensorBlock,
          interleave, group);
  const auto rounded = copies == DType::none ? 0 : dtype_bytes(copies);
  for (auto& stage : stages_) {
    if (threads > 0) stage.memory = Pinned(group * (2 * std::int64_t{sizeof(float)} + rounded), device);
    auto* at = stage.memory.data();
    stage.gradient = Tensor(at, {{group}, DType::f32});
    stage.value = Tensor(at ? at + stage.gradient.bytes() : nullptr, {{group}, DType::f32});
    if (rounded > 0) stage.copy = Tensor(at ? at + 2 * stage.gradient.bytes() : nullptr, {{group}, copies});
  }
  if (threads > 0) params_memory_ = Pinned(sizeof(StepParams), device);
  params_ = Tensor(params_memory_.data(), {{sizeof(StepParams)}, DType::u8});
  if (device.is_cuda() && threads > 0) pool_ = std::make_unique<Pool>(threads);
}

HostUpdate::~HostUpdate() = default;

void HostUpdate::queue(const Stream& s, const Grad* operands, const void* args) const {
  auto& call = calls_[operands];  // of a launch that may still be queued
  if (!call || call->args != args) call = std::make_unique<Call>(Call{*pool_, operands, args});
  queue_host_call(
      s,
      [](void* data) {
        const auto& c = *static_cast<const Call*>(data);
        update_on_host(c.pool, c.operands, *static_cast<const UpdateArgs*>(c.args));
      },
      call.get());
}

/// The records of one update.
class HostUpdate::Recorder {
 public:
  Recorder(const HostUpdate& of, Graph& g, const AdamW::Args& args) : of_(of), g_(g), args_(args) {}

  void run(std::span<const MovedTensor> tensors) {
    const auto groups = groups_of(tensors, of_.group_);
    const Operand params[] = {window(params_var(), 0, sizeof(StepParams), Access::write)};
    const ParamsToHost::RecordArgs none;
    g_.emit<ParamsToHost>(params, &none, sizeof none, {}, Phase::update);
    const auto k = static_cast<std::size_t>(of_.interleave_);
    const auto on_device = [&](std::size_t i) { return k > 0 && i % k == k - 1; };
    std::vector<std::size_t> here;  // the groups of the CPU
    for (std::size_t i = 0; i < groups.size(); ++i)
      if (!on_device(i)) here.push_back(i);
    // What a lane copies for later groups comes before what earlier ones send back, which is not there yet.
    std::vector<There> there(groups.size());
    std::size_t brought = k - 1, fetched = 0, updated = 0;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      for (; k > 0 && brought < groups.size() && brought <= i + k; brought += k)
        there[brought] = bring(groups[brought]);
      for (; fetched < here.size() && fetched < updated + kStages - 1; ++fetched) fetch(groups[here[fetched]], fetched);
      if (on_device(i)) update_there(groups[i], there[i]);
      else update_here(groups[i], updated++);
    }
  }

 private:
  /// Of a group, on the device. By piece; a copy only if it lies on the host.
  struct There {
    std::vector<Operand> m, v, value, gradient, copy;
  };
  Var variable(const StateEntry& e) { return g_.constant(e.name, e.memory); }
  Var params_var() { return g_.constant("host update.params", of_.params_); }
  Operand piece_of(const StateEntry& e, const UpdatePiece& p, Access access = Access::read) {
    return window(variable(e), p.begin, p.count, access);
  }

  /// The memory through which the CPU's group number `number` passes.
  struct Passage {
    Var gradient, value, copy;
  };
  Passage passage(std::size_t number) {
    const auto i = number % kStages;
    const auto& stage = of_.stages_[i];
    const auto named = [&](std::string_view what, const Tensor& memory) {
      return g_.constant(fmt::format("host update.{}.{}", what, i), memory);
    };
    return {named("gradient", stage.gradient), named("value", stage.value),
            stage.copy.spec() ? named("copy", stage.copy) : Var()};
  }

  /// Records copies of what the CPU needs of a group.
  void fetch(const UpdateGroup& group, std::size_t number) {
    const auto stage = passage(number);
    Moves in;
    for (const auto& p : group) {
      const auto& e = *p.tensor->value;
      const auto staged = [&](const Var& v) { return window(v, p.place, p.count, Access::write); };
      if (!e.gradient->on_host) in.add(staged(stage.gradient), piece_of(*e.gradient, p));
      if (!e.on_host) in.add(staged(stage.value), piece_of(e, p));
    }
    in.record(g_, Lane::reduce, Phase::update);
  }

  void update_here(const UpdateGroup& group, std::size_t number) {
    const auto stage = passage(number);
    Moves out;
    std::vector<Operand> operands{window(params_var(), 0, sizeof(StepParams), Access::read)};
    for (const auto& p : group) {
      const auto& e = *p.tensor->value;
      /// The piece if it lies here, or else its place in the stage.
      const auto near = [&](const StateEntry& of, const Var& stage_of, Access access) {
        return of.on_host ? piece_of(of, p, access) : window(stage_of, p.place, p.count, access);
      };
      const auto value = near(e, stage.value, Access::update);
      const auto copy = e.copy ? near(*e.copy, stage.copy, Access::write) : Operand();
      if (!e.on_host) out.add(piece_of(e, p), value);
      if (e.copy && !e.copy->on_host) out.add(piece_of(*e.copy, p), copy);
      operands.insert(operands.end(),
                      {value, near(*e.gradient, stage.gradient, Access::read),
                       piece_of(*p.tensor->m, p, Access::update), piece_of(*p.tensor->v, p, Access::update), copy});
    }
    const auto args = args_of(group, UpdateArgs{{kName, &of_}, {args_, std::ssize(group)}});
    const auto* bound = reinterpret_cast<const UpdateArgs*>(args.data());
    {
      const Graph::OnLane on(g_, Lane::weights);
      g_.emit<Update>(operands, args.data(), args.size(), {.operations = operations_of(group)}, Phase::update, bound);
    }
    out.record(g_, Lane::gather, Phase::update);
  }

  /// Records copies of what the device needs of a group.
  There bring(const UpdateGroup& group) {
    const auto room = [&](std::string_view name, DType type) {
      return g_.temporary(fmt::format("host update.{}", name), {{extent_of(group)}, type});
    };
    const auto room_if = [&](std::string_view name, DType type, auto&& on_host) {
      return std::ranges::any_of(group, [&](const UpdatePiece& p) { return on_host(*p.tensor->value); })
                 ? room(name, type)
                 : Var();
    };
    const Var m = room("m", DType::f32), v = room("v", DType::f32),
              value = room_if("value", DType::f32, [](const StateEntry& e) { return e.on_host; }),
              gradient = room_if("gradient", DType::f32, [](const StateEntry& e) { return e.gradient->on_host; }),
              copy = room_if("copy", of_.stages_[0].copy.dtype(),
                             [](const StateEntry& e) { return e.copy && e.copy->on_host; });
    There list;
    Moves moves;
    for (const auto& p : group) {
      const auto& e = *p.tensor->value;
      const auto moved = [&](const StateEntry& of, const Var& to, Access access) {
        const auto there = window(to, p.place, p.count, access);
        moves.add(there, piece_of(of, p));
        return there;
      };
      list.m.push_back(moved(*p.tensor->m, m, Access::update));
      list.v.push_back(moved(*p.tensor->v, v, Access::update));
      list.value.push_back(e.on_host ? moved(e, value, Access::update) : piece_of(e, p, Access::update));
      list.gradient.push_back(e.gradient->on_host ? moved(*e.gradient, gradient, Access::read)
                                                  : piece_of(*e.gradient, p));
      list.copy.push_back(!e.copy           ? Operand()
                          : e.copy->on_host ? moved(*e.copy, copy, Access::write)
                                            : piece_of(*e.copy, p, Access::write));
    }
    moves.record(g_, Lane::gather, Phase::update);
    return list;
  }

  void update_there(const UpdateGroup& group, const There& there) {
    std::vector<Operand> operands;
    Moves back;
    for (std::size_t i = 0; i < group.size(); ++i) {
      const auto& p = group[i];
      const auto& e = *p.tensor->value;
      operands.insert(operands.end(), {there.value[i], there.gradient[i], there.m[i], there.v[i], there.copy[i]});
      back.add(piece_of(*p.tensor->m, p), there.m[i]), back.add(piece_of(*p.tensor->v, p), there.v[i]);
      if (e.on_host) back.add(piece_of(e, p), there.value[i]);
      if (e.copy && e.copy->on_host) back.add(piece_of(*e.copy, p), there.copy[i]);
    }
    detail::AdamWRecord head{args_, std::ssize(group)};
    clear_padding(head);
    const auto args = args_of(group, head);
    g_.emit<AdamW>(operands, args.data(), args.size(), {.operations = operations_of(group)}, Phase::update);
    back.record(g_, Lane::reduce, Phase::update);
  }

  const HostUpdate& of_;
  Graph& g_;
  const AdamW::Args& args_;
};

void HostUpdate::record(Graph& g, std::span<const MovedTensor> tensors, const AdamW::Args& args) const {
  Recorder(*this, g, args).run(tensors);
}

/// Of an element, on the CPU. Each group is touched once, as in a step: no state comes from a cache. Gradients are 0, and
/// so values and moments stay as they are.
double HostUpdate::seconds_of_update(std::span<const UpdateGroup> groups) const {
  const auto& stage = stages_[0];
  StepParams params;
  Stream host(*pool_, &params);
  double seconds = 0;
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    std::vector<Grad> operands;
    for (const auto& p : groups[i]) {
      const auto& value = *p.tensor->value;
      operands.emplace_back(
          value.on_host ? slice_of(value.memory, p.begin, p.count) : slice_of(stage.value, p.place, p.count),
          Write::accumulate);
      operands.emplace_back(slice_of(stage.gradient, p.place, p.count), Write::overwrite);
      for (const auto* moment : {p.tensor->m, p.tensor->v})
        operands.emplace_back(slice_of(moment->memory, p.begin, p.count), Write::accumulate);
      operands.emplace_back(stage.copy ? slice_of(stage.copy, p.place, p.count) : Tensor(), Write::overwrite);
    }
    std::vector<std::byte> args(sizeof(detail::AdamWRecord) + groups[i].size());
    const detail::AdamWRecord head{{}, std::ssize(groups[i])};
    std::memcpy(args.data(), &head, sizeof head);
    const auto start = Clock::now();
    AdamW::run(host, operands.data(), args.data());
    if (i > 0) seconds += seconds_since(start), elements += extent_of(groups[i]);  // the first one wakes the threads
  }
  return seconds / static_cast<double>(elements);
}

void HostUpdate::measure(std::span<const MovedTensor> tensors, Pool& pool) {
  constexpr std::size_t kMost = 16, kMovesOfGroup = 4;
  auto groups = groups_of(tensors, group_);
  if (!device_.is_cuda() || groups.size() < 2) return;
  groups.resize(std::min(groups.size(), kMost));
  for (const auto& stage : stages_) std::memset(stage.memory.data(), 0, static_cast<std::size_t>(stage.memory.bytes()));
  // As in a step, copies in both directions and the CPU share the bandwidth of the host's memory.
  const auto moves = kMovesOfGroup * groups.size();
  const auto bytes = stages_[0].gradient.bytes();
  const Spec spec = stages_[0].gradient.spec();
  const Buffer there(2 * bytes, device_);
  const Stream down(device_, pool), up(device_, pool);
  std::array<TimedEvent, 4> times;
  for (const bool timed : {false, true})
    for (std::size_t i = 0; i < (timed ? moves : 1); ++i) {
      if (timed && i == 0) times[0].record(down), times[1].record(up);
      copy_to_pinned(down, stages_[1].gradient.data(), View(there.data(), spec, device_));
      copy(up, Tensor(there.data() + bytes, spec, device_), stages_[2].gradient);
      if (timed && i + 1 == moves) times[2].record(down), times[3].record(up);
    }
  const double moved = static_cast<double>(moves) * static_cast<double>(bytes);
  UpdateRates rates;
  rates.cpu = seconds_of_update(groups);
  rates.to_host = TimedEvent::seconds_between(times[0], times[2]) / moved;
  rates.from_host = TimedEvent::seconds_between(times[1], times[3]) / moved;
  // Most of the elements are those of matrices, which lie where the largest of them does.
  const auto& e =
      *std::ranges::max_element(tensors, {}, [](const MovedTensor& t) { return t.value->memory.size(); })->value;
  constexpr double kFloat = sizeof(float);
  const double rounded = e.copy ? dtype_bytes(e.copy->memory.dtype()) : 0;
  const bool copy_here = e.copy && e.copy->on_host, gradient_here = e.gradient->on_host;
  const double value = e.on_host ? 0 : kFloat, state = (e.on_host ? 3 : 2) * kFloat;
  interleave_ = choose_interleave(
      rates, {value + (gradient_here ? 0 : kFloat), value + (copy_here ? 0 : rounded)},
      {state + (copy_here ? rounded : 0), state + (gradient_here ? kFloat : 0) + (copy_here ? rounded : 0)});
}

}  // namespace hpcdl
