#include "hpcdl/train/memory_plan.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>

#include "hpcdl/core/units.h"
#include "hpcdl/instance.h"
#include "hpcdl/ops/attention/attention.h"
#include "hpcdl/ops/conv2d/conv2d.h"
#include "hpcdl/pipe/lower.h"

namespace hpcdl::train {

namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr int kMostZero = 3;  // of parallel.zero

/// A product packs at most 8 MiB of B, 4 MiB of sums and 1 MiB of A for each thread (ops/matmul/gemm_plan.cpp).
constexpr std::int64_t kThreadWorkspace = 14 * kMiB;
/// Code and data of the program and its libraries that are touched only once it runs, and buffers of files.
constexpr std::int64_t kProcess = 16 * kMiB;
constexpr std::int64_t kThread = kMiB;  // its stack and its heap
/// Records of the programs that a parameter takes part in: 11 KiB of heap with 724 parameters.
constexpr std::int64_t kOfParameter = 12 << 10;

constexpr std::int64_t kStreamWorkspace = 64 * kMiB;  // cuda::kWorkspaceBytes
/// What a driver for CUDA 13 keeps beside our tensors and workspaces, in the runs of memory_held.test.cpp on an H100 and
/// an H200. The context is there before room is looked for.
constexpr std::int64_t kLibraries = 64 * kMiB;      // 5 to 25 MiB: kernels, cuBLASLt, cuDNN, captured graphs
constexpr std::int64_t kAllLibraries = 512 * kMiB;  // 423 MiB with CUDA_MODULE_LOADING=EAGER, which loads every kernel
constexpr std::int64_t kNccl = 896 * kMiB;          // 829 MiB of two ranks

std::int64_t library_bytes() {
  const char* loading = std::getenv("CUDA_MODULE_LOADING");
  return loading && std::string_view(loading) == "EAGER" ? kAllLibraries : kLibraries;
}

std::int64_t bytes_of(const std::vector<io::NamedTensor>& tensors) {
  std::int64_t sum = 0;
  for (const auto& t : tensors) sum += t.tensor.bytes();
  return sum;
}

/// The most that writing one of these tensors takes beside it.
std::int64_t copy_bytes(const std::vector<io::NamedTensor>& tensors) {
  std::int64_t most = 0;
  for (const auto& t : tensors) {
    const auto whole = whole_spec(t.tensor.spec(), t.part, t.name).bytes();
    if (!t.part.all()) most = std::max(most, 2 * whole);  // and a part of another rank
    else if (!t.tensor.is_contiguous()) most = std::max(most, whole);
  }
  return most;
}

std::string worst_record(const Program& program, const Plan& plan) {
  if (plan.worst_record < 0) return "no record";
  const auto& r = program.records[static_cast<std::size_t>(plan.worst_record)];
  const auto& scope = program.scopes[r.scope];
  return fmt::format("record {} ({}, {}{}{})", plan.worst_record, r.op, phase_name(r.phase), scope.empty() ? "" : ", ",
                     scope);
}

/// Whether attention may compute on padded copies, which lie in a workspace of their own (ops/attention/padded.cu).
bool pads_heads(const Program& program) {
  return std::ranges::any_of(program.records, [&](const Record& r) {
    if (r.op != Attention::name) return false;
    Attention::Args args;
    std::memcpy(&args, program.args.data() + r.args, sizeof args);
    const auto& rows = program.operands[r.operands].spec;  // (B, T, H D)
    return rows[-1] / args.heads * dtype_bytes(rows.dtype) % 16 != 0;
  });
}

/// Whether convolutions may compute on copies of their operands, which lie there, too: f32 in parts, and images with
/// odd numbers of channels (ops/conv2d/f32_parts.cuh, padded_channels.h).
bool copies_images(const Program& program) {
  const auto copied = [](const Operand& o) {
    return o.slot >= 0 && o.spec.shape.rank() == 4 && (o.spec.dtype == DType::f32 || o.spec[3] % 8 != 0);
  };
  return std::ranges::any_of(program.records, [&](const Record& r) {
    return r.op == Conv2d::name &&
           std::ranges::any_of(std::span(program.operands).subspan(r.operands, r.operand_count), copied);
  });
}

/// Calls f for the programs of the stages of this rank, and returns the bytes of its frames: of the micro-batches in
/// flight, and of an evaluation.
template <class F> std::int64_t look_at_stages(const StepPrograms& step, F&& f) {
  const auto& stages = *step.stages();
  std::int64_t bytes = 0;
  const auto look = [&](const StagePasses& passes, const pipe::Schedule& schedule) {
    for (const auto& part : passes.parts)
      if (stages.has(part.stage))
        for (const auto& program : {part.forward, part.backward[0], part.backward[1], part.weights[0], part.weights[1]})
          if (program) f(*program);
    if (const auto& v = passes.vocabulary)
      for (const auto& program :
           {v->merge, v->lookup, v->logits, v->loss[0], v->loss[1], v->lookup_gradient[0], v->lookup_gradient[1]})
        if (program) f(*program);
    bytes += pipe::frame_bytes(schedule, passes.parts, stages.group().rank(),
                               passes.vocabulary ? &*passes.vocabulary : nullptr);
  };
  look(step.training_stages(), stages.schedule());
  look(step.evaluation_stages(), pipe::forward_only(stages.schedule()));
  return bytes;
}

std::string bytes(std::int64_t n) { return format_bytes(static_cast<double>(n)); }

}  // namespace

MemoryLedger plan_memory(models::Trainable& model, const StepOptions& options, std::int64_t micro_batches,
                         Device device) {
  require(model.described(), "memory", "expected a model that is only described");
  Pool pool(1);
  Stream stream(device, pool);
  auto described = options;
  const auto& ranks = options.data;
  if (options.zero > 0) described.data = comm::Group::described(ranks.rank(), ranks.size(), ranks.name());
  else described.data = {};  // gradients that are exchanged lie elsewhere, and are as large
  described.stages.world = {};
  if (const auto& stages = options.stages.group; stages.size() > 1)
    described.stages.group = comm::Group::described(stages.rank(), stages.size(), stages.name());
  const StepPrograms step(model, described, stream);
  MemoryLedger l;
  model.state().for_each([&](const StateEntry& e) {
    if (!e.counted) return;
    const bool elsewhere = device.is_cuda() && (e.role == StateRole::moment ? !e.memory.device().is_cuda() : e.on_host);
    auto& sum = e.on_disk >= 0                  ? l.on_disk
                : elsewhere                     ? l.on_host
                : e.role == StateRole::gradient ? l.gradients
                : e.role == StateRole::moment   ? l.optimizer
                                                : l.weights;
    sum += e.memory.bytes();
  });
  l.other = model.bytes() - l.weights - (step.ranks() ? 0 : l.gradients);
  if (step.ranks()) l.gradients = step.ranks()->gradient_bytes();
  if (const auto* tree = step.tree()) l.gradients += tree->bytes();
  std::int64_t most = -1;
  const auto look = [&](const Planned& planned, bool of_step) {
    const auto& [program, p, inputs, outputs] = planned;
    l.activations = std::max(l.activations, p.arena_bytes);
    if (device.is_cuda() && (pads_heads(program) || copies_images(program))) l.workspaces = kStreamWorkspace;
    if (of_step && p.live_bytes > most) most = p.live_bytes, l.peak = worst_record(program, p);
  };
  look(*step.update()->planned, true);
  if (const auto update = step.host_update()) l.on_host += update->planned->plan.arena_bytes;
  if (step.stages()) {
    const auto frames = look_at_stages(step, [&](const Planned& program) { look(program, true); });
    l.activations += frames;
  } else {
    look(*step.first()->planned, true);
    if (step.has_more()) look(*step.more()->planned, micro_batches > 1);
    look(*step.evaluation()->planned, false);
  }
  l.moved = step.moved_activations();
  if (l.moved.bytes > 0) l.moved_to = options.activations.on_host ? Tier::host : Tier::disk;
  if (!device.is_cuda()) {
    const auto files = model.state().model_files(), moments = stored(step.optimizer().moments());
    l.saving = std::max(copy_bytes(files), copy_bytes(moments));
    l.copy = bytes_of(files) + bytes_of(moments);
    l.process = kOfParameter * std::ssize(model.parameters());
  }
  // Of two steps, which take turns, and of an evaluation.
  for (const auto& input : step.inputs())
    if (!device.is_cuda()) l.staged += (2 * micro_batches + 1) * input.spec.bytes();
  return l;
}

void add_estimates(MemoryLedger& l, const Workers& w, Device device) {
  if (device.is_cuda()) {
    l.workspaces += (w.ranks > 1 ? 2 : 1) * kStreamWorkspace;
    l.process = library_bytes() + (w.ranks > 1 ? kNccl : 0);
    return;
  }
  // No more than the operands and results of the largest product could be.
  l.workspaces = w.threads * std::min(kThreadWorkspace, l.weights + l.gradients + l.activations);
  l.process += kProcess + w.threads * kThread;
}

bool MemoryAdvice::try_change(const MemoryChange& change, const Plan& plan) {
  if (change == now_.change) return false;
  alternatives_.push_back({change, plan(change)});
  return fits(alternatives_.back().ledger);
}

/// The largest part of the batch that fits, the others left out of the table; the smallest one where none does.
bool MemoryAdvice::try_smaller_batches(MemoryChange change, const Plan& plan) {
  const auto whole = change;
  for (std::int64_t parts = 2; parts <= whole.batch; ++parts) {
    if (whole.batch % parts != 0) continue;
    change.batch = whole.batch / parts, change.accumulate = whole.accumulate * parts;
    if (try_change(change, plan)) return true;
    if (change.batch > 1) alternatives_.pop_back();
  }
  return false;
}

void MemoryAdvice::look_for_smaller(const Plan& plan) {
  const auto& now = now_.change;
  auto recompute = now, half = now;
  recompute.recompute = true;
  if (now.dtype == Compute::f32 || now.dtype == Compute::tf32) half.dtype = Compute::bf16;
  auto both = half;
  both.recompute = true;
  bool found = false;
  for (auto divided = now; ranks_ > 1 && divided.zero < kMostZero;) {
    ++divided.zero;
    found = try_change(divided, plan) || found;
  }
  for (const auto tier : {Tier::host, Tier::disk}) {
    auto there = now;
    if (elsewhere_.take_optimizer(tier)) there.optimizer = tier;
    found = try_change(there, plan) || found;
  }
  if (elsewhere_.host && elsewhere_.parameters_on_host && now.optimizer != Tier::disk) {
    auto there = now;
    there.optimizer = there.parameters = Tier::host;
    found = try_change(there, plan) || found;
  }
  found = try_change(recompute, plan) || found;
  found = try_smaller_batches(now, plan) || found;
  found = try_change(half, plan) || found;
  if (found) return;
  if (both != half && both != recompute) found = try_change(both, plan);
  if (recompute != now) found = try_smaller_batches(recompute, plan) || found;
  if (!found && half != now) try_smaller_batches(both, plan);
}

std::int64_t MemoryLedger::bytes_on(Tier tier) const {
  return (tier == Tier::host ? on_host : on_disk) + (moved_to == tier ? moved.bytes : 0);
}

std::optional<Tier> MemoryAdvice::lacking(const MemoryLedger& ledger) const {
  const auto more = [&](std::int64_t bytes, Tier tier) {
    const auto& room = elsewhere_.of(tier);
    return bytes > (room ? room->bytes : 0);
  };
  for (const auto tier : {Tier::host, Tier::disk})
    if (more(ledger.bytes_on(tier), tier)) return tier;
  return {};
}

const MemoryPlan* MemoryAdvice::smallest_change() const {
  for (const auto& a : alternatives_)
    if (fits(a.ledger)) return &a;
  return nullptr;
}

std::string MemoryAdvice::words(const MemoryChange& c) const {
  const auto& now = now_.change;
  std::string out;
  if (c.optimizer != now.optimizer) out += fmt::format(" --offload.optimizer={}", io::enum_name(c.optimizer));
  if (c.parameters != now.parameters) out += fmt::format(" --offload.parameters={}", io::enum_name(c.parameters));
  if (c.zero != now.zero) out += fmt::format(" --parallel.zero={}", c.zero);
  if (c.recompute != now.recompute) out += " --train.recompute=true";
  if (c.batch != now.batch) out += fmt::format(" --train.batch={} --train.accumulate={}", c.batch, c.accumulate);
  if (c.dtype != now.dtype) out += fmt::format(" --train.dtype={}", io::enum_name(c.dtype));
  return out.empty() ? "no change" : out.substr(1);
}

std::string MemoryAdvice::verdict() const {
  if (fits())
    return fmt::format("the run takes {} of {} ({})", bytes(now_.ledger.total()), bytes(room_.bytes), room_.of);
  if (const auto tier = lacking(now_.ledger); tier && now_.ledger.total() <= room_.bytes) {
    const bool disk = *tier == Tier::disk;
    const auto& room = elsewhere_.of(*tier);
    const auto there =
        room ? fmt::format("{} is available ({})", bytes(room->bytes), room->of) : "nothing can lie there";
    if (disk)
      return fmt::format(
          "what lies on the disk takes {}, but only {}: free more, name a folder on another disk (offload.folder), or "
          "keep "
          "more in memory (offload.*)",
          bytes(now_.ledger.bytes_on(*tier)), there);
    return fmt::format(
        "what lies in host memory takes {}, but only {}: keep more on the GPU (offload.*), or divide state among more "
        "ranks (parallel.zero)",
        bytes(now_.ledger.bytes_on(*tier)), there);
  }
  const auto* change = smallest_change();
  const auto fixed = now_.ledger.weights + now_.ledger.gradients + now_.ledger.optimizer;
  return fmt::format(
      "the run takes {}, but only {} is available ({}); {}", bytes(now_.ledger.total()), bytes(room_.bytes), room_.of,
      change ? "the smallest change that fits: " + words(change->change)
      : fixed > room_.bytes
          ? fmt::format("weights, gradients and optimizer alone take {}: {}take a smaller model", bytes(fixed),
                        shareable_ ? "share the layers out over more ranks (parallel.tp), or " : "")
      : shareable_ ? "nothing above fits: take a smaller model or context, or share the layers out over "
                     "more ranks (parallel.tp)"
                   : "nothing above fits: take a smaller model or smaller images");
}

std::string MemoryAdvice::text() const {
  const auto& l = now_.ledger;
  std::string out = "memory that the run takes:\n";
  const auto row = [&](std::string_view name, std::int64_t n, std::string_view note = "") {
    if (n > 0) out += fmt::format("  {:<16}{:>12}{}{}\n", name, bytes(n), note.empty() ? "" : "  ", note);
  };
  row("weights", l.weights);
  row("gradients", l.gradients);
  row("optimizer", l.optimizer);
  row("activations", l.activations, "at most, in " + l.peak);
  row("batches", l.staged);
  row("other", l.other);
  row("workspaces", l.workspaces, "about, for kernels");
  row("saving", l.saving, "at most");
  row("process", l.process, "about");
  row("total", l.total());
  out += fmt::format("  {:<16}{:>12}  {}\n", "available", bytes(room_.bytes), room_.of);
  row("copy", l.copy, "beside the total, if there is room: of a checkpoint that is written while the run goes on");
  row("on the host", l.on_host, "state of the optimizer, and weights");
  row("on the disk", l.on_disk, "state of the optimizer, and weights");
  const auto& moved = l.moved;
  row("moved", moved.bytes,
      fmt::format("{} activations of a pass, to the {} and back; {} wait in memory", moved.count,
                  io::enum_name(l.moved_to), bytes(moved.kept)));
  if (alternatives_.empty()) return out;
  std::size_t width = 6;
  for (const auto& a : alternatives_) width = std::max(width, words(a.change).size());
  out += fmt::format(
      "changes that take less memory for the same samples in a step, each recorded and planned:\n  "
      "{:<{}}{:>14}{:>14}\n",
      "change", width, "activations", "total");
  for (const auto& a : alternatives_)
    out += fmt::format("  {:<{}}{:>14}{:>14}  {}\n", words(a.change), width, bytes(a.ledger.activations),
                       bytes(a.ledger.total()), fits(a.ledger) ? "fits" : "too large");
  return out;
}

}  // namespace hpcdl::train
