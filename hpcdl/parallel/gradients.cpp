#include "hpcdl/parallel/gradients.h"

#include <algorithm>
#include <map>

#include "hpcdl/comm/algo/policy.h"
#include "hpcdl/comm/ledger.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/parallel/agree.h"
#include "hpcdl/program/axis.h"
#include "hpcdl/program/check.h"

namespace hpcdl::parallel {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint8_t kStream = 2;  // of a GPU: 0 computes, 1 may have gradients of weights

constexpr std::string_view kGradients = "gradients";

/// Of a record that names its operands for the order alone.
Cost untouched(std::span<const Operand> updated) {
  Cost c;
  for (const auto& o : updated) c.updates -= static_cast<double>(o.spec.bytes());
  return c;
}

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

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

struct Gradients::Start : Bound {
  int bucket = 0, ranks = 1;
  char axis[24] = {};
  bool wait = false;

  Start(const Gradients* self, int b, bool w)
      : Bound(kGradients, self), bucket(b), ranks(self->group_.size()), wait(w) {
    fmt::format("{} of {}", self->group_.name(), ranks).copy(axis, sizeof axis - 1);
  }
  Gradients& self() const { return *static_cast<Gradients*>(const_cast<void*>(at)); }
  /// Buckets, F32 each.
  static void check_record(const RawRecord& r) {
    require(valid_args(r.args<Start>().wait), kGradients, "\"wait\" is neither true nor false");
    for (std::size_t i = 0; i < r.count(); ++i)
      require(r.contiguous(i).dtype == DType::f32, kGradients, "a bucket is {}", to_string(r.spec(i)));
  }
  static void check_one(const RawRecord& r) {
    r.require_count(1), check_record(r);
    const auto& a = r.args<Start>();
    require(a.axis[sizeof a.axis - 1] == 0 && a.ranks >= 1, kGradients, "its axis has no name or no ranks");
  }
  static std::vector<hpcdl::Exchange> exchanges_of(std::span<const Spec> operands, const void* args) {
    const auto& a = *static_cast<const Start*>(args);
    return {{ExchangeKind::all_reduce, a.axis, a.ranks, operands[0].bytes()}};
  }
  static std::vector<hpcdl::Exchange> later(std::span<const Spec> operands, const void* args) {
    auto list = exchanges_of(operands, args);
    list[0].waits = false;
    return list;
  }
};

// What its records are called, and run.
struct Gradients::Queued {
  static constexpr std::string_view name = "queue.all_reduce";
  static constexpr RunFn run = &Gradients::start;
  using RecordArgs = Start;
  static void check_record(const RawRecord& r) { Start::check_one(r); }
  static constexpr ExchangesFn exchanges = &Start::later;
};
struct Gradients::Reduced {
  static constexpr std::string_view name = "all_reduce.gradients";
  static constexpr RunFn run = &Gradients::start;
  using RecordArgs = Start;
  static void check_record(const RawRecord& r) { Start::check_one(r); }
  static constexpr ExchangesFn exchanges = &Start::exchanges_of;
};
struct Gradients::Join {
  static constexpr std::string_view name = "all_reduce.join";
  static constexpr RunFn run = &Gradients::join;
  using RecordArgs = Start;
  static void check_record(const RawRecord& r) { Start::check_record(r); }
};
struct Gradients::Computed {
  static constexpr std::string_view name = "all_reduce.computed";
  static constexpr RunFn run = &Gradients::computed;
  using RecordArgs = Start;
  static void check_record(const RawRecord& r) { Start::check_record(r); }
};

Gradients::Gradients(comm::Group group, std::vector<ReadyGradient> order, const ReduceOptions& options, Device device)
    : group_(std::move(group)), order_(std::move(order)), options_(options), device_(device) {
  std::vector<std::int64_t> bytes;
  for (const auto& g : order_) {
    require(g.spec.dtype == DType::f32, "parallel",
            "the gradient of \"{}\" is {}; expected F32, which sums of many ranks need", g.name, to_string(g.spec));
    require(index_.emplace(g.name, static_cast<int>(bytes.size())).second, "parallel",
            "two gradients are called \"{}\"", g.name);
    bytes.push_back(g.spec.bytes());
  }
  plan_ = plan_buckets(bytes, options_.buckets);
  for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {
    bucket_.insert(bucket_.end(), static_cast<std::size_t>(plan_.buckets[b].end - plan_.buckets[b].begin),
                   static_cast<int>(b));
    names_.push_back("gradients." + std::to_string(b));
  }
  works_.resize(plan_.buckets.size());
  if (options_.timed && device_.is_cuda()) stamps_.resize(plan_.buckets.size());
  if (group_.is_described()) return;
  if (!device_.is_cuda() && group_.size() > 1 && plan_.bytes > 0) window_ = group_.share(plan_.bytes);
  const bool some_share = sum_over_ranks(group_, window_ ? 1 : 0) > 0;
  if (options_.algorithm == comm::Algorithm::automatic && !device_.is_cuda())
    options_.algorithm = position_independent_sum(group_, some_share);
  if (window_) data_ = window_->block(group_.local_rank());
  else own_ = Buffer(plan_.bytes, device_), data_ = own_.data();
}

Gradients::~Gradients() {
  for (auto& work : works_) {
    try {
      work.wait();            // its memory goes away
    } catch (const Error&) {  // told already to whoever waited first
    }
  }
}

const Gradients* Gradients::of(const Instance& exe) {
  const auto* bound = static_cast<const Gradients*>(exe.bindings().object(kGradients));
  return bound && bound->options_.overlap && !bound->device_.is_cuda() ? bound : nullptr;
}

Tensor Gradients::gradient(std::string_view name) const {
  const auto it = index_.find(name);
  require(it != index_.end(), "parallel", "no gradient is called \"{}\"", name);
  const auto i = static_cast<std::size_t>(it->second);
  return Tensor(data_ ? data_ + plan_.offset[i] : nullptr, order_[i].spec, device_);
}

void Gradients::start(Stream& s, const Grad* operands, const void* args) {
  const auto& a = *static_cast<const Start*>(args);
  auto& self = a.self();
  require(a.bucket >= 0 && a.bucket < std::ssize(self.names_), "parallel", "there is no bucket {}", a.bucket);
  const comm::Label label(self.names_[static_cast<std::size_t>(a.bucket)]);
  if (s.device().is_cuda()) {
    const auto group = a.wait ? self.group_ : self.group_.beside();
    auto* stamps = self.stamps_.empty() ? nullptr : &self.stamps_[static_cast<std::size_t>(a.bucket)];
    if (stamps) stamps->begin.record(s);
    group.all_reduce(s, operands[0], comm::Reduce::sum, self.options_.algorithm);
    if (stamps) stamps->end.record(s);
  } else if (a.wait) {
    const auto begin = Clock::now();
    self.group_.blocking().all_reduce(s, operands[0], comm::Reduce::sum, self.options_.algorithm);
    const double seconds = seconds_between(begin, Clock::now());
    self.times_.seconds += seconds, self.times_.waited_seconds += seconds;
  } else {
    self.works_[static_cast<std::size_t>(a.bucket)] =
        self.group_.all_reduce(s, operands[0], comm::Reduce::sum, self.options_.algorithm);
  }
}

void Gradients::join(Stream&, const Grad*, const void* args) {
  auto& self = static_cast<const Start*>(args)->self();
  const auto begin = Clock::now();
  self.exchanges_.clear();
  for (std::size_t b = 0; b < self.works_.size(); ++b) {
    comm::Work work = self.works_[b];
    work.wait();
    const auto [from, to] = std::exchange(self.works_[b], {}).took();
    self.exchanges_.push_back({static_cast<int>(b), from, to});
    self.times_.seconds += seconds_between(from, to);
  }
  self.times_.waited_seconds += seconds_between(begin, Clock::now());
}

void Gradients::computed(Stream& s, const Grad*, const void* args) {
  static_cast<const Start*>(args)->self().computed_.record(s);
}

void Gradients::take_times() {
  if (stamps_.empty() || !computed_) return;
  double seconds = 0, behind = 0;  // behind: the last of them ended so long after everything else
  for (const auto& [begin, end] : stamps_) {
    seconds += TimedEvent::seconds_between(begin, end);
    behind = std::max(behind, TimedEvent::seconds_between(computed_, end));
  }
  times_.seconds += seconds;
  times_.waited_seconds += options_.overlap ? std::min(behind, seconds) : seconds;
  ++times_.passes;
}

/// What is left to be reduced while a pass is recorded. The recorder keeps hooks for good: afterwards they find nothing
/// to do.
struct Gradients::Recording {
  std::vector<Operand> buckets;
  std::vector<int> missing;  // gradients of each bucket that backward has not completed
};

void Gradients::reduce(Graph& g, const Recording& r, std::size_t bucket) {
  const Graph::Scope scope(g, names_[bucket]);
  const Graph::Beside beside(g, options_.overlap ? kStream : 0);
  Start args(this, static_cast<int>(bucket), !options_.overlap);
  clear_padding(args);
  // One that is only queued is no collective in a trace: "all_reduce.join" is.
  const std::span<const Operand> operands(&r.buckets[bucket], 1);
  if (options_.overlap && !device_.is_cuda())
    g.emit<Queued>(operands, &args, sizeof args, untouched(operands), Phase::backward, &args);
  else g.emit<Reduced>(operands, &args, sizeof args, {}, Phase::backward, &args);
}

void Gradients::record(Graph& g, const std::function<void()>& backward) {
  const auto r = std::make_shared<Recording>();
  for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {  // before backward: a hook must not add leaves
    const auto& bucket = plan_.buckets[b];
    const Spec spec{{bucket.bytes / dtype_bytes(DType::f32)}, DType::f32};
    auto* at = data_ ? data_ + bucket.offset : nullptr;
    r->buckets.push_back(g.constant(names_[b], Tensor(at, spec, device_)).operand());
    r->buckets.back().access = Access::update;
    r->missing.push_back(bucket.end - bucket.begin);
  }
  g.on_gradient([this, r](Graph& graph, const std::string& name, const Var&) {
    const auto it = index_.find(name);
    if (r->buckets.empty() || it == index_.end()) return;
    const auto b = static_cast<std::size_t>(bucket_[static_cast<std::size_t>(it->second)]);
    if (--r->missing[b] == 0) reduce(graph, *r, b);
  });
  backward();
  for (std::size_t b = 0; b < r->missing.size(); ++b)
    if (r->missing[b] > 0) reduce(g, *r, b);
  if (options_.overlap && !device_.is_cuda()) {  // the end of a program waits for a GPU's streams
    Start args(this, 0, true);
    clear_padding(args);
    g.emit<Join>(r->buckets, &args, sizeof args, untouched(r->buckets), Phase::backward, &args);
  }
  if (!stamps_.empty()) {  // without operands: it waits for no reduction
    Start args(this, 0, false);
    clear_padding(args);
    g.emit<Computed>({}, &args, sizeof args, {}, Phase::backward, &args);
  }
  r->buckets.clear();
}

}  // namespace hpcdl::parallel
