#include "hpcdl/lab/comm/bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "hpcdl/comm/algo/policy.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/lab/comm/gpu.h"
#include "hpcdl/lab/comm/operands.h"
#include "hpcdl/lab/comm/protocol.h"
#include "hpcdl/lab/remembered.h"
#include "hpcdl/program/axis.h"

namespace hpcdl::lab {

using comm::Algorithm;
using comm::Collective;
using comm::Group;

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

class Sides {
 public:
  Sides(const Group& g, const Stream& s, const CommCase& c, const std::vector<CommSide>& sides)
      : g_(g.blocking()), s_(s), case_(c), sides_(sides), operands_(g, c, sides) {}

  void call(std::size_t i) { operands_.call(g_, s_, sides_[i]); }
  double turn(std::size_t i, int calls) {
    call(i);
    g_.barrier(s_);
    const double begin = now();
    for (int k = 0; k < calls; ++k) call(i);
    return (now() - begin) / calls;
  }
  std::int64_t wire_bytes(std::size_t i) {
    const auto before = g_.counters().wire_bytes;
    call(i);
    return g_.counters().wire_bytes - before;
  }
  double error(std::size_t i) {
    operands_.fill(g_, sides_[i]);
    call(i);
    std::vector<double> most{operands_.error(g_, sides_[i])};
    slowest(most);
    operands_.clear();
    return most[0];
  }
  /// The maximum over all ranks, element by element.
  void slowest(std::vector<double>& times) const {
    g_.all_reduce(s_, Tensor(times.data(), Spec{Shape{static_cast<std::int64_t>(times.size())}, DType::f64}),
                  comm::Reduce::max, Algorithm::tree);
  }

 private:
  Group g_;
  Stream s_;
  const CommCase& case_;
  const std::vector<CommSide>& sides_;
  CommOperands operands_;
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
  if (s.device().is_cuda()) return bench_on_gpus(g, s, c, sides, o);
  Sides run(g, s, c, sides);
  return in_turns(run, sides, o);
}

int hosts_of(const Group& g) {
  int most = 0;
  for (int r = 0; r < g.size(); ++r) most = std::max(most, g.host(r));
  return most + 1;
}

bool has_native(const Group& g) { return g.transport() == "mpi"; }

std::vector<CommSide> comm_sides(const Group& g, const CommCase& c, bool native) {
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
