#include "hpcdl/instance.h"

#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/host_call.h"
#include "hpcdl/core/ways.h"
#include "hpcdl/graph/row_invariance.h"
#include "hpcdl/program/axis.h"

namespace hpcdl {

Instance::Instance(std::shared_ptr<const Planned> planned, Bindings bindings, std::shared_ptr<Buffer> arena,
                   Device device)
    : planned_(std::move(planned)), bindings_(std::move(bindings)), arena_(std::move(arena)) {
  if (device.is_cuda() && program().numerics.row_invariant)
    for (const auto& r : program().records)
      require(rows_alone_on_gpu(r.op.view()), "program",
              "on a GPU rows of {} depend on each other: run the program on a CPU, or record it without row_invariant",
              r.op.view());
  const auto bytes = plan().arena_bytes;
  if (!arena_ || arena_->bytes() < bytes || arena_->device() != device)
    arena_ = std::make_shared<Buffer>(bytes, device);
  bind_args();
  const auto* args = args_.empty() ? program().args.data() : args_.data();
  resolved_.reserve(program().operands.size());
  for (const auto& o : program().operands)
    resolved_.emplace_back(resolve(o), o.access == Access::update ? Write::accumulate : Write::overwrite);
  steps_.reserve(program().records.size());
  std::vector<Lane> lanes;
  for (const auto& r : program().records) {
    const auto function = function_of(r.op, r.backward);
    require(function.run != nullptr, "program", "this program knows no op \"{}\"", r.op.view());
    const bool starts = !device.is_cuda() && r.lane != Lane::compute && function.start;
    steps_.push_back({function.run, resolved_.data() + r.operands, args + r.args, starts ? function.start : nullptr});
    lanes.push_back(device.is_cuda() || starts ? r.lane : Lane::compute);
  }
  dependencies_ = lane_dependencies(program(), lanes, resolved_, device.is_cuda());
}

Instance::Instance(const Pass& pass, std::shared_ptr<Buffer> arena, Device device)
    : Instance(pass.planned, pass.bindings, std::move(arena), device) {}

Instance::Instance(Recording recorded, std::shared_ptr<Buffer> arena, Device device)
    : Instance(hpcdl::planned(std::move(recorded.program)), std::move(recorded.bindings), std::move(arena), device) {}

// Defined here, and not in every file that uses it, because it destroys a dozen members.
Instance::Instance(Instance&&) noexcept = default;
Instance& Instance::operator=(Instance&&) noexcept = default;
Instance::~Instance() = default;

void Instance::bind_args() {
  if (program().bounds.empty()) return;
  args_ = program().args;
  for (const auto at : program().bounds) {
    auto& bound = *reinterpret_cast<Bound*>(args_.data() + at);
    bound.at = bindings_.object(bound.name);
    require(bound.at != nullptr, "program", "\"{}\" is not bound, but records of the program use it", bound.name);
  }
}

Tensor Instance::resolve(const Operand& o) const {
  if (o.slot < 0) return {};
  const auto at = static_cast<std::size_t>(o.slot);
  const auto& slot = program().slots[at];
  const Tensor memory = slot.kind == SlotKind::state ? bindings_.memory(slot.name) : Tensor();
  if (slot.kind == SlotKind::state && slot.spec.bytes() > 0) {  // an empty tensor has no memory: null on some devices
    require(memory && memory.spec() == slot.spec && memory.is_contiguous(), "program",
            "\"{}\" must be bound to a contiguous {}, got {}", slot.name, to_string(slot.spec),
            memory ? to_string(memory.spec()) : "nothing");
    require(memory.device() == arena_->device() || is_pinned(memory.data()), "program",
            "\"{}\" is neither on the device that the program runs on nor in page-locked memory: move the model there "
            "before recording",
            slot.name);
  }
  std::byte* base = slot.kind == SlotKind::state ? memory.ptr<std::byte>() : arena_->data() + plan().offset[at];
  return Tensor(base + o.offset * dtype_bytes(o.spec.dtype), o.spec, o.strides,
                memory ? memory.device() : arena_->device());
}

void Instance::run_queued(Stream& s) const {
  s.push_params();
  if (capture_) return capture_.launch(s);
  walk(s);
}

/// Runs every record on the stream of its lane, after what it must wait for. All of them come after earlier work of `s`
/// and before later work.
void Instance::walk(Stream& s) const {
  if (dependencies_.one_lane) {
    for (const auto& step : steps_) step.run(s, step.operands, step.args);
    return;
  }
  if (owner_ != s.native()) {
    own_.clear(), lanes_.clear();
    for (int lane = 1; lane < kLanes; ++lane) {
      own_.emplace_back(s.device(), s.pool());
      lanes_.push_back(Stream::borrowed(s.device(), own_.back().native(), s.pool(), s.kernel_params()));
    }
    owner_ = s.native();
  }
  for (auto& lane : lanes_) lane.compute_like(s);
  events_.resize(steps_.size() + 1);
  auto& start = events_.back();
  start.record(s);
  for (std::size_t lane = 1; lane < kLanes; ++lane)
    if (dependencies_.last[lane] >= 0) start.wait(lanes_[lane - 1]);
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const auto lane = static_cast<std::size_t>(program().records[i].lane);
    auto& queue = lane == 0 ? s : lanes_[lane - 1];
    for (int record : dependencies_.waits[i]) events_[static_cast<std::size_t>(record)].wait(queue);
    steps_[i].run(queue, steps_[i].operands, steps_[i].args);
    if (dependencies_.signals[i]) events_[i].record(queue);
  }
  for (int record : dependencies_.last)
    if (record >= 0) events_[static_cast<std::size_t>(record)].wait(s);
}

void Instance::capture(Stream& s) {
  if (!s.device().is_cuda() || steps_.empty()) return;
  const WithNumerics numerics(s, program().numerics);
  Capture::begin(s);
  walk(s);
  capture_ = Capture::end(s);
}

void Instance::prepare(Stream& s) const {
  if (!s.device().is_cuda()) return;
  const WithNumerics numerics(s, program().numerics);
  const DryRun dry(s);
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const auto& record = program().records[i];
    if (record.phase == Phase::update || !exchanges(program(), record).empty()) continue;
    if (s.way_notes()) s.way_notes()->begin_record(static_cast<int>(i));
    steps_[i].run(s, steps_[i].operands, steps_[i].args);
  }
}

void Instance::run(Stream& s, int begin, int end, const std::function<void(int)>& after,
                   const std::function<void(int, Ticket::Span)>& waited) const {
  const WithNumerics numerics(s, program().numerics);
  s.push_params();
  tickets_.resize(steps_.size());
  std::array<int, kLanes> next;  // by lane: its first record that has not been waited for
  next.fill(begin);
  const auto wait = [&](int record) {  // and for the earlier ones of its lane
    const auto lane = program().records[static_cast<std::size_t>(record)].lane;
    for (int& i = next[static_cast<std::size_t>(lane)]; i <= record; ++i) {
      auto& ticket = tickets_[static_cast<std::size_t>(i)];
      if (!ticket || program().records[static_cast<std::size_t>(i)].lane != lane) continue;
      const auto span = ticket.wait();
      if (waited) waited(i, span);
    }
  };
  // Other threads may work on the operands of what has begun, whatever went wrong here.
  struct Rest {
    std::span<Ticket> tickets;
    ~Rest() {
      for (auto& ticket : tickets) {
        try {
          ticket.wait();
        } catch (const std::exception&) {  // the first error is on its way
        }
      }
    }
  } rest{std::span(tickets_).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin))};
  for (int i = begin; i < end; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const auto& step = steps_[at];
    for (int record : dependencies_.waits[at]) wait(record);
    if (step.start) tickets_[at] = step.start(s, step.operands, step.args);
    else step.run(s, step.operands, step.args);
    if (after) after(i);
  }
  for (int i = begin; i < end; ++i) wait(i);
}

Tensor Instance::tensor(const Var& v) const {
  const Operand o = v.operand();
  require(o.slot >= 0 && o.slot < std::ssize(program().slots), "program",
          "expected a variable of this program, got an absent variable or one of another program");
  const auto& slot = program().slots[static_cast<std::size_t>(o.slot)];
  require(slot.kind != SlotKind::temp, "program",
          "\"{}\" is temporary: keep() it while recording to read it after a run", slot.name);
  require(slot.kind == SlotKind::state || plan().offset[static_cast<std::size_t>(o.slot)] >= 0, "program",
          "no record uses \"{}\", so it has no memory", slot.name);
  return resolve(o);
}

std::span<const Grad> Instance::operands(int record) const {
  const auto& r = program().records[static_cast<std::size_t>(record)];
  return {resolved_.data() + r.operands, r.operand_count};
}

}  // namespace hpcdl
