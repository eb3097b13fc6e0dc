#include "hpcdl/lab/comm/gpu.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "hpcdl/comm/device_group.h"
#include "hpcdl/core/buffer.h"
#include "hpcdl/core/clock.h"
#include "hpcdl/core/element.h"
#include "hpcdl/lab/comm/protocol.h"

namespace hpcdl::lab {

using comm::Algorithm;
using comm::Collective;
using comm::Group;
using comm::Reduce;

namespace {

constexpr std::int64_t kMostShared = std::int64_t{16} << 20;  // bytes, of the kernels over peers' memory
constexpr int kInGraph = 20;                                  // calls
constexpr std::int64_t kPattern = 64;                         // values repeat

/// Exact in every type, and so are sums over a few ranks, except for bf16 with more than 8 ranks.
double value_of(int rank, std::int64_t i) { return static_cast<double>((i * 7 + rank * 13) % kPattern); }

class GpuCase {
 public:
  GpuCase(const Group& g, const Stream& s, const CommCase& c, const std::vector<CommSide>& sides)
      : g_(g), s_(s), case_(c), sides_(sides) {
    if (c.dtype == DType::i16 || c.dtype == DType::u16)
      fail_usage("bench", "NCCL has no {}: use integers of 1, 4 or 8 bytes", dtype_name(c.dtype));
    const bool one = c.what == Collective::all_reduce;
    part_ = part_elements(c, g.size());
    const std::int64_t whole = part_ * parts(c, g.size());
    in_ = OwnedTensor({{c.what == Collective::all_gather ? part_ : whole}, c.dtype}, s.device());
    if (!one) out_ = OwnedTensor({{c.what == Collective::reduce_scatter ? part_ : whole}, c.dtype}, s.device());
    fill();
  }

  double turn(std::size_t side, int calls) {
    if (in_graph_[side].first != std::min(calls, kInGraph)) capture(side, std::min(calls, kInGraph));
    const auto& [size, graph] = in_graph_[side];
    const int launches = (calls + size - 1) / size;
    barrier();
    const auto begin = Clock::now();
    for (int i = 0; i < launches; ++i) graph.launch(s_);
    comm::synchronize(g_, s_);
    return seconds_since(begin) / (launches * size);
  }

  /// The largest difference to sums in double, relative to the largest sum.
  double error(std::size_t side) {
    OwnedTensor result(out().spec());
    fill();
    call(side);
    comm::synchronize(g_, s_);
    copy(s_, result.tensor, out());
    double worst = 0, scale = 1;
    for (std::int64_t i = 0; i < result.tensor.size(); ++i) {
      const double want = expected(i), off = std::fabs(element(result.tensor, i) - want);
      worst = std::max(worst, std::isfinite(off) ? off : INFINITY), scale = std::max(scale, std::fabs(want));
    }
    std::vector<double> most{worst / scale};
    slowest(most);
    return most[0];
  }

  std::int64_t wire_bytes(std::size_t side) {
    const auto before = g_.counters().wire_bytes;
    call(side);
    return g_.counters().wire_bytes - before;
  }

  void slowest(std::vector<double>& times) {
    g_.blocking().all_reduce(host_, Tensor(times.data(), Spec{{std::ssize(times)}, DType::f64}), Reduce::max);
  }

 private:
  void fill() {
    OwnedTensor host(in_.tensor.spec());
    for (std::int64_t i = 0; i < host.tensor.size(); ++i) set_element(host.tensor, i, value_of(g_.rank(), i));
    copy(s_, in_.tensor, host.tensor);
    s_.synchronize();
  }
  const Tensor& out() const { return case_.what == Collective::all_reduce ? in_.tensor : out_.tensor; }
  void barrier() { g_.blocking().barrier(host_); }

  double expected(std::int64_t i) const {
    if (case_.what == Collective::all_gather) return value_of(static_cast<int>(i / part_), i % part_);
    if (case_.what == Collective::all_to_all)
      return value_of(static_cast<int>(i / part_), g_.rank() * part_ + i % part_);
    if (case_.what == Collective::reduce_scatter) i += g_.rank() * part_;
    double sum = 0, most = 0;
    for (int r = 0; r < g_.size(); ++r) sum += value_of(r, i), most = std::max(most, value_of(r, i));
    return case_.op == Reduce::max ? most : case_.op == Reduce::avg ? sum / g_.size() : sum;
  }

  void call(std::size_t side) {
    const Algorithm a = sides_[side].algorithm;
    switch (case_.what) {
      case Collective::all_reduce: g_.all_reduce(s_, in_.tensor, case_.op, a); break;
      case Collective::reduce_scatter: g_.reduce_scatter(s_, out_.tensor, in_.tensor, case_.op, a); break;
      case Collective::all_gather: g_.all_gather(s_, out_.tensor, in_.tensor, a); break;
      default: g_.all_to_all(s_, out_.tensor, in_.tensor, a); break;
    }
  }

  void capture(std::size_t side, int calls) {
    call(side);  // loads what is loaded lazily
    comm::synchronize(g_, s_);
    Capture::begin(s_);
    for (int i = 0; i < calls; ++i) call(side);
    in_graph_[side] = {calls, Capture::end(s_)};
  }

  Group g_;
  Stream s_;
  CommCase case_;
  const std::vector<CommSide>& sides_;
  Pool pool_{1};
  Stream host_{pool_};
  std::int64_t part_ = 0;
  OwnedTensor in_, out_;
  std::map<std::size_t, std::pair<int, Capture>> in_graph_;
};

}  // namespace

std::vector<CommSide> gpu_sides(const Group& g, const CommCase& c, const Stream& s) {
  std::vector<CommSide> list{{Algorithm::automatic, Memory::own}, {Algorithm::native, Memory::own}};
  const bool known = c.dtype == DType::f32 || c.dtype == DType::bf16 || c.dtype == DType::f16 || c.dtype == DType::i32;
  g.connect(s.device());
  if (c.what == Collective::all_reduce && known && c.bytes <= kMostShared && g.device_group()->writes_to_peers())
    list.push_back({Algorithm::shared, Memory::own});
  return list;
}

std::vector<CommResult> bench_on_gpus(const Group& g, const Stream& s, const CommCase& c,
                                      const std::vector<CommSide>& sides, const CommOptions& o) {
  GpuCase run(g, s, c, sides);
  return in_turns(run, sides, o);
}

}  // namespace hpcdl::lab
