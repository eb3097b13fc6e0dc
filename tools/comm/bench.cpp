#include "tools/comm/bench.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "hpcdl/comm/algo/policy.h"
#include "hpcdl/comm/device_group.h"
#include "hpcdl/core/clock.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/machine/remembered.h"
#include "hpcdl/program/axis.h"
#include "tools/comm/operands.h"
#include "tools/compare/protocol.h"

namespace hpcdl::lab {

using comm::Algorithm;
using comm::Collective;
using comm::Group;

namespace {

constexpr std::int64_t kMostShared = std::int64_t{16} << 20;  // bytes, of the kernels over peers' memory
constexpr int kInGraph = 20;                                  // calls

/// The sides of one case on this rank, and the clock of all ranks: a call takes as long as on the slowest of them, and
/// nothing else makes time pass, so that all ranks make the same decisions. All members are collective.
class Sides : public compare::Environment {
 public:
  Sides(const Group& g, const Stream& s, const CommCase& c, const std::vector<CommSide>& sides)
      : on_gpu_(s.device().is_cuda()),
        g_(on_gpu_ ? g : g.blocking()),
        s_(s),
        sides_(sides),
        operands_(g, s, c, sides) {}

  compare::Side side(std::size_t i) {
    return {.name = sides_[i].name(), .call = [this, i] { call(i); }, .before = [this, i] { turn_ = i; }};
  }
  double now() override { return time_; }
  void synchronize() override {}
  void flush() override {}
  void sleep(double) override {}
  std::string flush_method() const override { return ""; }
  double time(const std::function<void()>& call, int calls) override {
    std::vector<double> seconds{on_gpu_ ? in_graphs(call, calls) : directly(call, calls)};
    slowest(seconds);
    time_ += seconds[0];
    return seconds[0];
  }

  std::int64_t wire_bytes(std::size_t i) {
    const auto before = g_.counters().wire_bytes;
    call(i);
    return g_.counters().wire_bytes - before;
  }
  double error(std::size_t i) {
    operands_.fill(g_, sides_[i]);
    call(i);
    if (on_gpu_) comm::synchronize(g_, s_);
    std::vector<double> most{operands_.error(g_, sides_[i])};
    slowest(most);
    operands_.clear();
    return most[0];
  }

 private:
  void call(std::size_t i) { operands_.call(g_, s_, sides_[i]); }
  void barrier() { g_.blocking().barrier(host_); }
  /// The maximum over all ranks, element by element.
  void slowest(std::vector<double>& values) const {
    g_.blocking().all_reduce(host_, Tensor(values.data(), Spec{{std::ssize(values)}, DType::f64}), comm::Reduce::max,
                             Algorithm::tree);
  }

  double directly(const std::function<void()>& call, int calls) {
    barrier();
    const auto begin = Clock::now();
    for (int k = 0; k < calls; ++k) call();
    return seconds_since(begin);
  }
  double in_graphs(const std::function<void()>& call, int calls) {
    const int size = std::min(calls, kInGraph), launches = (calls + size - 1) / size;
    const auto [at, fresh] = graphs_.try_emplace({turn_, size});
    if (fresh) at->second = captured(call, size);
    barrier();
    const auto begin = Clock::now();
    for (int k = 0; k < launches; ++k) at->second.launch(s_);
    comm::synchronize(g_, s_);
    return seconds_since(begin) * calls / (launches * size);
  }
  Capture captured(const std::function<void()>& call, int calls) {
    call();  // loads what is loaded lazily
    comm::synchronize(g_, s_);
    Capture::begin(s_);
    for (int k = 0; k < calls; ++k) call();
    return Capture::end(s_);
  }

  bool on_gpu_;
  Group g_;
  Stream s_;
  Pool pool_{1};
  Stream host_{pool_};
  const std::vector<CommSide>& sides_;
  CommOperands operands_;
  std::size_t turn_ = 0;
  double time_ = 0;
  std::map<std::pair<std::size_t, int>, Capture> graphs_;  // by side and calls
};

}  // namespace

std::string CommSide::name() const {
  return fmt::format("{}{}", comm::algorithm_name(algorithm), memory == Memory::window ? " (window)" : "");
}

int parts(const CommCase& c, int ranks) { return c.what == Collective::all_reduce ? 1 : ranks; }

std::int64_t part_elements(const CommCase& c, int ranks) {
  return std::max<std::int64_t>(1, c.bytes / dtype_bytes(c.dtype) / parts(c, ranks));
}

double CommResult::busbw(const CommCase& c, int ranks) const {
  const double part = static_cast<double>(ranks - 1) / ranks;
  return algbw(c) * (c.what == Collective::all_reduce ? 2 * part : part);
}

std::vector<CommResult> bench_collective(const Group& g, const Stream& s, const CommCase& c,
                                         const std::vector<CommSide>& sides, const CommOptions& o) {
  Sides clock(g, s, c, sides);
  std::vector<CommResult> results(sides.size());
  std::vector<compare::Side> list;
  for (std::size_t i = 0; i < sides.size(); ++i) {
    results[i].side = sides[i];
    if (o.check) results[i].max_error = clock.error(i);
    results[i].wire_bytes = clock.wire_bytes(i);
    list.push_back(clock.side(i));
  }
  const auto measured = compare::run(
      list, clock,
      {.rounds = o.rounds, .least = 5, .most = 101, .target = o.target, .limit = o.seconds, .patience = 1});
  const CommSide native{Algorithm::native, Memory::own};
  for (std::size_t i = 0; i < sides.size(); ++i) {
    results[i].seconds = measured.sides[i].time();
    results[i].calls = measured.sides[i].calls, results[i].rounds = measured.rounds();
    if (!measured.has(native.name())) continue;
    results[i].native_seconds = measured.side(native.name()).time().median;
    results[i].ratio = measured.ratio(native.name(), sides[i].name());
  }
  return results;
}

int hosts_of(const Group& g) {
  int most = 0;
  for (int r = 0; r < g.size(); ++r) most = std::max(most, g.host(r));
  return most + 1;
}

bool has_native(const Group& g) { return g.transport() == "mpi"; }

std::vector<CommSide> comm_sides(const Group& g, const Stream& s, const CommCase& c, bool native) {
  if (s.device().is_cuda()) {
    std::vector<CommSide> list{{Algorithm::automatic, Memory::own}};
    if (native) list.push_back({Algorithm::native, Memory::own});
    const bool known =
        c.dtype == DType::f32 || c.dtype == DType::bf16 || c.dtype == DType::f16 || c.dtype == DType::i32;
    g.connect(s.device());
    if (c.what == Collective::all_reduce && known && c.bytes <= kMostShared && g.device_group()->writes_to_peers())
      list.push_back({Algorithm::shared, Memory::own});
    return list;
  }
  const int hosts = hosts_of(g);
  std::vector<CommSide> list;
  for (const Algorithm a :
       comm::algo::possible({.what = c.what, .ranks = g.size(), .hosts = hosts, .shared = hosts < g.size()}, native)) {
    list.push_back({a, Memory::own});
    if (a == Algorithm::shared) list.push_back({a, Memory::window});
  }
  return list;
}

std::filesystem::path comm_policy_file() { return probe_file().parent_path() / "comm.txt"; }

void save_comm_policy(const std::vector<CommRow>& rows, const Group& g) {
  auto policy = comm::algo::Policy::read(comm_policy_file());
  for (const Memory memory : {Memory::own, Memory::window}) {
    std::vector<comm::algo::Policy::Row> measured;
    for (const auto& row : rows) {
      const CommResult* best = nullptr;
      for (const auto& r : row.results)
        if (r.side.memory == memory && r.side.algorithm != Algorithm::native &&
            (!best || r.seconds.median < best->seconds.median))
          best = &r;
      if (best)
        measured.push_back(
            {row.what.what, g.size(), hosts_of(g), memory == Memory::window, row.what.bytes, best->side.algorithm});
    }
    policy.replace(measured);
  }
  io::make_folder(comm_policy_file().parent_path());
  io::write_file_atomic(comm_policy_file(), policy.text());
}

std::optional<NetworkRoof> network_roof(const std::vector<CommRow>& rows, int ranks, int hosts,
                                        const std::string& device) {
  struct Point {
    double wire, seconds;
  };
  std::vector<Point> points;
  for (const auto& row : rows) {
    if (row.results.empty() || row.what.what > Collective::all_gather) continue;
    const auto kind = row.what.what == Collective::all_reduce       ? ExchangeKind::all_reduce
                      : row.what.what == Collective::reduce_scatter ? ExchangeKind::reduce_scatter
                                                                    : ExchangeKind::all_gather;
    double fastest = row.results[0].seconds.min;
    for (const auto& r : row.results) fastest = std::min(fastest, r.seconds.min);
    points.push_back({Exchange{kind, "", ranks, row.what.bytes}.wire_bytes(), fastest});
  }
  if (points.empty()) return std::nullopt;
  NetworkRoof n{device, ranks, hosts, 0, points[0].seconds};
  for (const auto& p : points) n.latency = std::min(n.latency, p.seconds);
  for (const auto& p : points)  // shorter ones take little time compared with the latency
    if (p.seconds >= 2 * n.latency) n.bandwidth = std::max(n.bandwidth, p.wire / (p.seconds - n.latency));
  return n.bandwidth > 0 ? std::optional(n) : std::nullopt;
}

void remember_network(const NetworkRoof& network) try {
  auto file = read_remembered();
  put_network(file, network);
  write_remembered(file);
} catch (const Error&) {
  // a read-only home
}

nlohmann::ordered_json comm_json(const CommCase& c, const CommResult& r, const Group& g) {
  const auto us = [](double seconds) { return std::round(seconds * 1e9) / 1e3; };
  nlohmann::ordered_json j = {{"collective", comm::collective_name(c.what)},
                              {"algorithm", comm::algorithm_name(r.side.algorithm)},
                              {"memory", memory_name(r.side.memory)},
                              {"bytes", c.bytes},
                              {"dtype", comm_dtype_name(c.dtype)},
                              {"ranks", g.size()},
                              {"hosts", hosts_of(g)},
                              {"transport", g.transport()},
                              {"us", us(r.seconds.median)},
                              {"us_low", us(r.seconds.low)},
                              {"us_high", us(r.seconds.high)},
                              {"algbw", r.algbw(c) / 1e9},
                              {"busbw", r.busbw(c, g.size()) / 1e9},
                              {"native_us", nullptr},
                              {"ratio", nullptr}};
  if (r.ratio) {
    j["native_us"] = us(r.native_seconds);
    j["ratio"] = r.ratio->median, j["ratio_low"] = r.ratio->low, j["ratio_high"] = r.ratio->high;
  }
  if (r.max_error) j["max_error"] = *r.max_error;
  j["wire_bytes"] = r.wire_bytes, j["rounds"] = r.rounds, j["calls"] = r.calls;
  return j;
}

}  // namespace hpcdl::lab
