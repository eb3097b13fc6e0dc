#include "hpcdl/parallel/unit_exchange.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "hpcdl/comm/algo/policy.h"
#include "hpcdl/comm/ledger.h"
#include "hpcdl/core/describe.h"
#include "hpcdl/core/error.h"
#include "hpcdl/ops/require.h"
#include "hpcdl/program/axis.h"
#include "hpcdl/program/check.h"

namespace hpcdl::parallel {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

/// Part number `rank` of `ranks` equal parts.
Tensor part_of(const Tensor& whole, int rank, int ranks) {
  const auto n = whole.size() / ranks;
  return Tensor(whole.ptr<std::byte>() + rank * n * dtype_bytes(whole.dtype()), {{n}, whole.dtype()}, whole.device());
}

}  // namespace

comm::Algorithm position_independent_sum(const comm::Group& group, bool shared_memory, comm::Collective what) {
  std::map<int, int> hosts;  // with their ranks
  int on_host = 0;
  for (int r = 0; r < group.size(); ++r) on_host = std::max(on_host, ++hosts[group.host(r)]);
  const auto can = comm::algo::possible({.what = what,
                                         .ranks = group.size(),
                                         .hosts = static_cast<int>(hosts.size()),
                                         .shared = shared_memory,
                                         .on_host = on_host},
                                        false);
  for (const auto a : {comm::Algorithm::shared, comm::Algorithm::hierarchical})
    if (std::find(can.begin(), can.end(), a) != can.end()) return a;
  return group.size() == 2 ? comm::Algorithm::ring : comm::Algorithm::halving;
}

struct UnitExchange::Args : Bound {
  int unit = 0, ranks = 1;
  char axis[24] = {};

  Args(const UnitExchange& of, std::size_t u)
      : Bound(of.name_, nullptr), unit(static_cast<int>(u)), ranks(of.group_.size()) {
    fmt::format("{} of {}", of.group_.name(), ranks).copy(axis, sizeof axis - 1);
  }
  const UnitExchange& self() const { return *static_cast<const UnitExchange*>(at); }
};

/// How a record of Op runs: `kOperands` operands, of which the last is the unit.
template <class Op> struct UnitExchange::Runs {
  static constexpr std::uint32_t kVersion = 1;
  using RecordArgs = Args;

  static void check_record(const RawRecord& r) {
    const auto& a = r.args<Args>();
    require(a.axis[sizeof a.axis - 1] == 0 && a.ranks >= 1, Op::name, "its axis has no name or no ranks");
    r.require_count(Op::kOperands);
    const Spec whole = r.contiguous(Op::kOperands - 1);
    require(Op::kMoves || whole.dtype == DType::f32, Op::name, "gradients are {}", to_string(whole));
    if (Op::kOperands == 1) return;
    require(whole.shape.rank() == 1 && whole[0] % a.ranks == 0, Op::name, "{} ranks cannot share {}", a.ranks,
            to_string(whole));
    if (r.spec(0)) require_spec(Op::name, "a share", r.contiguous(0), {{whole[0] / a.ranks}, whole.dtype});
  }
  static std::vector<hpcdl::Exchange> exchanges(std::span<const Spec> operands, const void* args) {
    const auto& a = *static_cast<const Args*>(args);
    return {{Op::kKind, a.axis, a.ranks, operands[Op::kOperands - 1].bytes()}};
  }
  static void run(Stream& s, const Grad* operands, const void* args) {
    const auto& a = *static_cast<const Args*>(args);
    const auto& self = a.self();
    const comm::Label label(self.name_of(a));
    if (s.device().is_cuda()) {
      const auto group = self.options_.overlap ? self.group_.beside() : self.group_;
      auto* stamps = Op::kMoves || self.stamps_.empty() ? nullptr : &self.stamps_[static_cast<std::size_t>(a.unit)];
      if (stamps) stamps->begin.record(s);
      self.begin(group, s, Op(), operands);
      if (stamps) stamps->end.record(s);
      return;
    }
    const auto begin = Clock::now();
    self.begin(self.group_.blocking(), s, Op(), operands).wait();
    const double seconds = seconds_between(begin, Clock::now());
    self.times_.seconds += seconds, self.times_.waited_seconds += seconds;
  }
  static Ticket start(Stream& s, const Grad* operands, const void* args) {
    const auto& a = *static_cast<const Args*>(args);
    const auto& self = a.self();
    const comm::Label label(self.name_of(a));
    return Ticket([&times = self.times_, work = self.begin(self.group_, s, Op(), operands)]() mutable {
      const auto begin = Clock::now();
      const comm::Work same = work;
      work.wait();
      const auto [from, to] = same.took();
      times.seconds += seconds_between(from, to);
      times.waited_seconds += seconds_between(begin, Clock::now());
      return Ticket::Span{from, to};
    });
  }
};

struct UnitExchange::Sum : Runs<Sum> {
  static constexpr std::string_view name = "all_reduce.gradients";
  static constexpr auto kKind = ExchangeKind::all_reduce;
  static constexpr int kOperands = 1;
  static constexpr bool kMoves = false;
};
/// Operands: a share, which may be absent, and the unit.
struct UnitExchange::ShareOfSum : Runs<ShareOfSum> {
  static constexpr std::string_view name = "reduce_scatter.gradients";
  static constexpr auto kKind = ExchangeKind::reduce_scatter;
  static constexpr int kOperands = 2;
  static constexpr bool kMoves = false;
};
/// The same operands.
struct UnitExchange::Gather : Runs<Gather> {
  static constexpr std::string_view name = "all_gather.values";
  static constexpr auto kKind = ExchangeKind::all_gather;
  static constexpr int kOperands = 2;
  static constexpr bool kMoves = true;
};
/// Operands: messages of all ranks, and messages to them.
struct UnitExchange::Swap : Runs<Swap> {
  static constexpr std::string_view name = "all_to_all.gradients";
  static constexpr auto kKind = ExchangeKind::all_to_all;
  static constexpr int kOperands = 2;
  static constexpr bool kMoves = false;

  static void check_record(const RawRecord& r) {
    const auto& a = r.args<Args>();
    require(a.axis[sizeof a.axis - 1] == 0 && a.ranks >= 1, name, "its axis has no name or no ranks");
    r.require_count(2);
    const Spec& mine = r.contiguous(1);
    require(mine.dtype == DType::u8 && mine.shape.rank() == 2 && mine[0] == a.ranks, name,
            "expected a message for each of {} ranks, got {}", a.ranks, to_string(mine));
    require_spec(name, "messages of all ranks", r.contiguous(0), mine);
  }
};
/// A time stamp after all else that the pass computes.
struct UnitExchange::Computed {
  static constexpr std::string_view name = "all_reduce.computed";
  static constexpr std::uint32_t kVersion = 3;
  static void run(Stream& s, const Grad*, const void* args) {
    static_cast<const Args*>(args)->self().computed_.record(s);
  }
  using RecordArgs = Args;
  static void check_record(const RawRecord& r) { r.require_count(0); }
};

UnitExchange::UnitExchange(comm::Group group, UnitPlan plan, const ReduceOptions& options, bool shared, Device device,
                           std::string name)
    : group_(std::move(group)), plan_(std::move(plan)), options_(options), name_(std::move(name)) {
  require(plan_.ranks == 1 || plan_.ranks == group_.size(), "parallel",
          "expected units for the {} ranks of the group, found some for {}", group_.size(), plan_.ranks);
  if (options_.timed && device.is_cuda()) stamps_.resize(plan_.units.size());
  share_algorithm_ = options_.algorithm;
  if (group_.is_described() || device.is_cuda() || options_.algorithm != comm::Algorithm::automatic) return;
  options_.algorithm = position_independent_sum(group_, shared);
  share_algorithm_ = position_independent_sum(group_, shared, comm::Collective::reduce_scatter);
}

comm::Work UnitExchange::begin(const comm::Group& group, const Stream& s, const Sum&, const Grad* t) const {
  return group.all_reduce(s, t[0], comm::Reduce::sum, options_.algorithm);
}
comm::Work UnitExchange::begin(const comm::Group& group, const Stream& s, const ShareOfSum&, const Grad* t) const {
  const Tensor share = t[0] ? Tensor(t[0]) : part_of(t[1], group_.rank(), group_.size());
  return group.reduce_scatter(s, share, t[1], comm::Reduce::sum, share_algorithm_);
}
comm::Work UnitExchange::begin(const comm::Group& group, const Stream& s, const Gather&, const Grad* t) const {
  const Tensor share = t[0] ? Tensor(t[0]) : part_of(t[1], group_.rank(), group_.size());
  return group.all_gather(s, t[1], share);
}

comm::Work UnitExchange::begin(const comm::Group& group, const Stream& s, const Swap&, const Grad* t) const {
  return group.all_to_all(s, t[0], t[1]);
}

const std::string& UnitExchange::name_of(const Args& a) const {
  require(a.unit >= 0 && a.unit < std::ssize(plan_.units), "parallel", "expected an existing unit, found number {}",
          a.unit);
  return plan_.units[static_cast<std::size_t>(a.unit)].name;
}

void UnitExchange::take_times() {
  if (stamps_.empty() || !computed_) return;
  double seconds = 0, after = 0;  // after: how long after everything else the last reduction ended
  for (const auto& [begin, end] : stamps_) {
    seconds += TimedEvent::seconds_between(begin, end);
    after = std::max(after, TimedEvent::seconds_between(computed_, end));
  }
  times_.seconds += seconds;
  times_.waited_seconds += options_.overlap ? std::min(after, seconds) : seconds;
  ++times_.passes;
}

template <class Op>
void UnitExchange::insert(Edit& edit, std::size_t at, std::size_t unit, std::span<const Operand> operands,
                          Lane lane) const {
  const auto& records = edit.program().records;
  std::string scope = Op::kMoves || at == 0 ? "" : edit.program().scopes[records[at - 1].scope];
  scope += (scope.empty() ? "" : ".") + plan_.units[unit].name;
  Record record;
  record.lane = options_.overlap ? lane : Lane::compute;
  if (!Op::kMoves) record.phase = Phase::backward;
  else if (!records.empty()) record.phase = records[std::min(at, records.size() - 1)].phase;
  record.scope = edit.add_scope(std::move(scope));
  edit.insert<Op>(at, record, operands, Args(*this, unit));
}

void UnitExchange::insert_sum(Edit& edit, std::size_t at, std::size_t unit, Operand whole) const {
  whole.access = Access::update;
  insert<Sum>(edit, at, unit, std::span(&whole, 1), Lane::reduce);
}
void UnitExchange::insert_share_of_sum(Edit& edit, std::size_t at, std::size_t unit, Operand whole,
                                       const Operand& share) const {
  Operand operands[] = {share, whole};
  operands[0].access = Access::write, operands[1].access = share.slot < 0 ? Access::update : Access::read;
  insert<ShareOfSum>(edit, at, unit, operands, Lane::reduce);
}
void UnitExchange::insert_gather(Edit& edit, std::size_t at, std::size_t unit, Operand whole,
                                 const Operand& share) const {
  Operand operands[] = {share, whole};
  operands[0].access = Access::read, operands[1].access = share.slot < 0 ? Access::update : Access::write;
  insert<Gather>(edit, at, unit, operands, Lane::gather);
}

void UnitExchange::insert_swap(Edit& edit, std::size_t at, std::size_t unit, Operand theirs, Operand mine) const {
  theirs.access = Access::write, mine.access = Access::read;
  const Operand operands[] = {theirs, mine};
  insert<Swap>(edit, at, unit, operands, Lane::reduce);
}

void UnitExchange::insert_end(Edit& edit) const {
  if (stamps_.empty()) return;
  Record record;  // without operands: it waits for no reduction
  record.phase = Phase::backward;
  edit.insert<Computed>(edit.program().records.size(), record, {}, Args(*this, 0));
}

}  // namespace hpcdl::parallel
