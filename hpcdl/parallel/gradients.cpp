#include "hpcdl/parallel/gradients.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <span>

#include "hpcdl/comm/algo/policy.h"
#include "hpcdl/comm/ledger.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/program/axis.h"
#include "hpcdl/program/check.h"
#include "hpcdl/program/edit.h"

namespace hpcdl::parallel {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kGradients = "gradients";

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

/// The last record that uses a gradient, and its place among the operands of that.
struct LastUse {
  int record = -1, operand = 0;  // -1: none
  auto operator<=>(const LastUse&) const = default;
};

std::vector<LastUse> last_uses(const Program& p, std::span<const ReadyGradient> gradients) {
  std::map<std::string, std::size_t, std::less<>> index;
  for (std::size_t i = 0; i < gradients.size(); ++i) index.emplace(gradients[i].name + ".grad", i);
  std::vector<LastUse> uses(gradients.size());
  for (int r = 0; r < std::ssize(p.records); ++r) {
    const auto& record = p.records[static_cast<std::size_t>(r)];
    for (std::uint32_t k = 0; k < record.operand_count; ++k) {
      const int slot = p.operands[record.operands + k].slot;
      if (slot < 0 || p.slots[static_cast<std::size_t>(slot)].kind != SlotKind::state) continue;
      const auto it = index.find(p.slots[static_cast<std::size_t>(slot)].name);
      if (it != index.end() && uses[it->second].record < r) uses[it->second] = {r, static_cast<int>(k)};
    }
  }
  return uses;
}

}  // namespace

std::vector<ReadyGradient> in_order_of_completion(const Program& program, std::vector<ReadyGradient> gradients) {
  const auto uses = last_uses(program, gradients);
  std::vector<std::size_t> order(gradients.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const bool used[] = {uses[a].record >= 0, uses[b].record >= 0};
    return used[0] && used[1] ? uses[a] < uses[b] : used[0] && !used[1];
  });
  std::vector<ReadyGradient> sorted;
  for (const auto i : order) sorted.push_back(std::move(gradients[i]));
  return sorted;
}

comm::Algorithm position_independent_sum(const comm::Group& group, bool shared_memory) {
  std::map<int, int> hosts;  // with their ranks
  int on_host = 0;
  for (int r = 0; r < group.size(); ++r) on_host = std::max(on_host, ++hosts[group.host(r)]);
  const auto can = comm::algo::possible({.what = comm::Collective::all_reduce,
                                         .ranks = group.size(),
                                         .hosts = static_cast<int>(hosts.size()),
                                         .shared = shared_memory,
                                         .on_host = on_host},
                                        false);
  for (const auto a : {comm::Algorithm::shared, comm::Algorithm::hierarchical})
    if (std::find(can.begin(), can.end(), a) != can.end()) return a;
  return group.size() == 2 ? comm::Algorithm::ring : comm::Algorithm::halving;
}

struct Gradients::Args : Bound {
  int bucket = 0, ranks = 1;
  char axis[24] = {};

  Args(const comm::Group& group, int b) : Bound(kGradients, nullptr), bucket(b), ranks(group.size()) {
    fmt::format("{} of {}", group.name(), ranks).copy(axis, sizeof axis - 1);
  }
  Gradients& self() const { return *static_cast<Gradients*>(const_cast<void*>(at)); }
};

/// The sum of a bucket over the ranks, in place.
struct Gradients::Reduced {
  static constexpr std::string_view name = "all_reduce.gradients";
  static constexpr std::uint32_t kVersion = 2;  // in version 1 an argument said whether to wait
  static constexpr RunFn run = &Gradients::reduce;
  static constexpr StartFn start = &Gradients::start;
  using RecordArgs = Args;
  static void check_record(const RawRecord& r) {
    r.require_count(1);
    require(r.contiguous(0).dtype == DType::f32, kGradients, "a bucket is {}", to_string(r.spec(0)));
    const auto& a = r.args<Args>();
    require(a.axis[sizeof a.axis - 1] == 0 && a.ranks >= 1, kGradients, "its axis has no name or no ranks");
  }
  static std::vector<hpcdl::Exchange> exchanges(std::span<const Spec> operands, const void* args) {
    const auto& a = *static_cast<const Args*>(args);
    return {{ExchangeKind::all_reduce, a.axis, a.ranks, operands[0].bytes()}};
  }
};
/// A time stamp after all else that the pass computes.
struct Gradients::Computed {
  static constexpr std::string_view name = "all_reduce.computed";
  static constexpr std::uint32_t kVersion = 2;
  static constexpr RunFn run = &Gradients::computed;
  using RecordArgs = Args;
  static void check_record(const RawRecord& r) { r.require_count(0); }
};

Gradients::Gradients(comm::Group group, std::vector<ReadyGradient> order, const ReduceOptions& options, Device device)
    : group_(std::move(group)), order_(std::move(order)), options_(options), device_(device) {
  std::vector<std::int64_t> bytes;
  for (const auto& g : order_) {
    require(g.spec.dtype == DType::f32, "parallel",
            "the gradient of \"{}\" is {}; expected F32, because gradients are summed over ranks in F32", g.name,
            to_string(g.spec));
    require(index_.emplace(g.name, static_cast<int>(bytes.size())).second, "parallel",
            "two gradients are called \"{}\"", g.name);
    bytes.push_back(g.spec.bytes());
  }
  plan_ = plan_buckets(bytes, options_.buckets);
  for (std::size_t b = 0; b < plan_.buckets.size(); ++b) names_.push_back("gradients." + std::to_string(b));
  if (options_.timed && device_.is_cuda()) stamps_.resize(plan_.buckets.size());
  if (group_.is_described()) return;
  if (!device_.is_cuda() && group_.size() > 1 && plan_.bytes > 0) window_ = group_.share(plan_.bytes);
  const bool some_share = sum_over_ranks(group_, window_ ? 1 : 0) > 0;
  if (options_.algorithm == comm::Algorithm::automatic && !device_.is_cuda())
    options_.algorithm = position_independent_sum(group_, some_share);
  if (window_) data_ = window_->block(group_.local_rank());
  else own_ = Buffer(plan_.bytes, device_), data_ = own_.data();
}

Tensor Gradients::gradient(std::string_view name) const {
  const auto it = index_.find(name);
  require(it != index_.end(), "parallel", "expected the name of a gradient, found \"{}\"", name);
  const auto i = static_cast<std::size_t>(it->second);
  return Tensor(data_ ? data_ + plan_.offset[i] : nullptr, order_[i].spec, device_);
}

void Gradients::reduce(Stream& s, const Grad* operands, const void* args) {
  const auto& a = *static_cast<const Args*>(args);
  auto& self = a.self();
  const auto bucket = self.bucket_of(a);
  const comm::Label label(self.names_[bucket]);
  if (s.device().is_cuda()) {
    const auto group = self.options_.overlap ? self.group_.beside() : self.group_;
    auto* stamps = self.stamps_.empty() ? nullptr : &self.stamps_[bucket];
    if (stamps) stamps->begin.record(s);
    group.all_reduce(s, operands[0], comm::Reduce::sum, self.options_.algorithm);
    if (stamps) stamps->end.record(s);
    return;
  }
  const auto begin = Clock::now();
  self.group_.blocking().all_reduce(s, operands[0], comm::Reduce::sum, self.options_.algorithm);
  const double seconds = seconds_between(begin, Clock::now());
  self.times_.seconds += seconds, self.times_.waited_seconds += seconds;
}

Ticket Gradients::start(Stream& s, const Grad* operands, const void* args) {
  const auto& a = *static_cast<const Args*>(args);
  auto& self = a.self();
  const comm::Label label(self.names_[self.bucket_of(a)]);
  return Ticket([&times = self.times_,
                 work = self.group_.all_reduce(s, operands[0], comm::Reduce::sum, self.options_.algorithm)]() mutable {
    const auto begin = Clock::now();
    const comm::Work same = work;
    work.wait();
    const auto [from, to] = same.took();
    times.seconds += seconds_between(from, to);
    times.waited_seconds += seconds_between(begin, Clock::now());
    return Ticket::Span{from, to};
  });
}

std::size_t Gradients::bucket_of(const Args& a) const {
  require(a.bucket >= 0 && a.bucket < std::ssize(names_), "parallel", "expected an existing bucket, found number {}",
          a.bucket);
  return static_cast<std::size_t>(a.bucket);
}

void Gradients::computed(Stream& s, const Grad*, const void* args) {
  static_cast<const Args*>(args)->self().computed_.record(s);
}

void Gradients::take_times() {
  if (stamps_.empty() || !computed_) return;
  double seconds = 0, behind = 0;  // after: how long after everything else the last reduction ended
  for (const auto& [begin, end] : stamps_) {
    seconds += TimedEvent::seconds_between(begin, end);
    behind = std::max(behind, TimedEvent::seconds_between(computed_, end));
  }
  times_.seconds += seconds;
  times_.waited_seconds += options_.overlap ? std::min(behind, seconds) : seconds;
  ++times_.passes;
}

Recording Gradients::reduced(Recording pass) const {
  auto& [program, bindings] = pass;
  const auto uses = last_uses(program, order_);
  Edit edit(std::move(program), "sum gradients over ranks");
  const auto& records = edit.program().records;
  for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {
    const auto& bucket = plan_.buckets[b];
    const Spec spec{{bucket.bytes / dtype_bytes(DType::f32)}, DType::f32};
    if (data_) bindings.bind(names_[b], Tensor(data_ + bucket.offset, spec, device_));
    const Operand sum{edit.add_slot({spec, SlotKind::state, names_[b]}), 0, spec, contiguous_strides(spec.shape),
                      Access::update};
    int last = -1;
    for (int i = bucket.begin; i < bucket.end; ++i) last = std::max(last, uses[static_cast<std::size_t>(i)].record);
    std::string scope = last < 0 ? "" : edit.program().scopes[records[static_cast<std::size_t>(last)].scope];
    scope += scope.empty() ? names_[b] : "." + names_[b];
    Record record;
    record.lane = options_.overlap ? Lane::reduce : Lane::compute;
    record.phase = Phase::backward;
    record.scope = edit.add_scope(std::move(scope));
    edit.insert<Reduced>(last < 0 ? records.size() : static_cast<std::size_t>(last) + 1, record, std::span(&sum, 1),
                         Args(group_, static_cast<int>(b)));
  }
  if (!stamps_.empty()) {  // without operands: it waits for no reduction
    Record record;
    record.phase = Phase::backward;
    edit.insert<Computed>(records.size(), record, {}, Args(group_, 0));
  }
  bindings.bind(std::string(kGradients), static_cast<const void*>(this));
  program = edit.finish();
  return pass;
}

}  // namespace hpcdl::parallel
