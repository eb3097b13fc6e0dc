#include <algorithm>
#include <map>

#include "hpcdl/core/error.h"
#include "tools/profile/cupti.h"
#include "tools/profile/timer.h"

#if HPCDL_CUDA
#include "hpcdl/core/cuda_runtime.h"
#endif

namespace hpcdl::lab {

#if HPCDL_CUDA

namespace {

using cuda::check;

/// An event after every record of a walk; one event that is waited for relates the events to the host's clock.
class EventTimer : public RecordTimer {
 public:
  EventTimer(Device device, std::string why) : device_(device), why_(std::move(why)) {}
  ~EventTimer() override {
    for (auto e : events_) cudaEventDestroy(e);
  }
  void begin() override { runs_.clear(), used_ = 0; }
  void run(const Instance& exe, Stream& s, ProgramRun& out) override {
    queue_ = cuda::queue(s);
    if (runs_.empty()) {
      s.synchronize();
      mark();
      check(cudaEventSynchronize(events_[0]), "cudaEventSynchronize");
      anchor_ = now_ns();
    }
    const auto n = exe.program().records.size();
    out.times.resize(n);
    out.host.begin = now_ns();
    runs_.push_back({&out, used_});
    mark();
    exe.run(s, 0, static_cast<int>(n), [&](int) { mark(); });
    out.host.end = now_ns();
  }
  bool finish(StepTrace&) override {
    if (!runs_.empty()) check(cudaStreamSynchronize(queue_), "a recorded step");
    for (const auto& [out, first] : runs_)
      for (std::size_t i = 0; i < out->times.size(); ++i) out->times[i] = {at(first + i), at(first + i + 1)};
    return true;
  }
  std::string how() const override {
    return "records are timed by events, launch by launch: between short kernels, these times include the launches; "
           "CUPTI could separate them, but " +
           why_;
  }

 private:
  struct Run {
    ProgramRun* out;
    std::size_t first;  // event
  };
  void mark() {
    if (used_ == events_.size()) check(cudaEventCreate(&events_.emplace_back()), "cudaEventCreate");
    check(cudaEventRecord(events_[used_++], queue_), "cudaEventRecord");
  }
  std::int64_t at(std::size_t event) const {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, events_[0], events_[event]), "cudaEventElapsedTime");
    return anchor_ + static_cast<std::int64_t>(static_cast<double>(ms) * 1e6);
  }

  Device device_;
  std::string why_;
  cudaStream_t queue_ = nullptr;
  std::vector<cudaEvent_t> events_;
  std::size_t used_ = 0;
  std::vector<Run> runs_;
  std::int64_t anchor_ = 0;
};

/// Nodes of the graph being captured on a stream.
std::size_t nodes_so_far(cudaStream_t s) {
  cudaStreamCaptureStatus status{};
  cudaGraph_t graph = nullptr;
  check(cudaStreamGetCaptureInfo(s, &status, nullptr, &graph, nullptr, nullptr, nullptr), "cudaStreamGetCaptureInfo");
  std::size_t n = 0;
  check(cudaGraphGetNodes(graph, nullptr, &n), "cudaGraphGetNodes");
  return n;
}

/// A captured program is launched as a whole, and CUPTI reports when each of its nodes ran. Nodes are created in the
/// order of the records, so counting them during a capture that is discarded shows which nodes belong to which record.
class CuptiTimer : public RecordTimer {
 public:
  CuptiTimer(std::unique_ptr<Cupti> cupti, Device device) : cupti_(std::move(cupti)), device_(device) {}

  void prepare(const Instance& exe, Stream& s) override {
    if (nodes_.contains(&exe)) return;
    auto& counts = nodes_[&exe];
    const auto queue = cuda::queue(s);
    Capture::begin(s);
    s.push_params();                               // a capture without a node has no graph yet
    std::size_t before = nodes_so_far(queue) + 1;  // run() pushes them, too
    exe.run(s, 0, static_cast<int>(exe.program().records.size()), [&](int) {
      const auto now = nodes_so_far(queue);
      counts.push_back(static_cast<int>(now - before));
      before = now;
    });
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(queue, &graph), "cudaStreamEndCapture");
    cudaGraphDestroy(graph);
  }
  void begin() override {
    runs_.clear();
    if (events_) return events_->begin();
    cupti_->start();
  }
  void run(const Instance& exe, Stream& s, ProgramRun& out) override {
    if (events_) return events_->run(exe, s, out);
    prepare(exe, s);
    out.host.begin = now_ns();
    exe.run(s);
    out.host.end = now_ns();
    runs_.push_back({&out, &nodes_.at(&exe)});
  }
  bool finish(StepTrace& trace) override {
    if (events_) return events_->finish(trace);
    check(cudaDeviceSynchronize(), "a recorded step");
    cupti_->stop();
    std::size_t lost = 0;
    auto all = cupti_->take(lost);
    const bool whole = lost == 0 && attribute(all, trace);
    failures_ = whole ? 0 : failures_ + 1;
    if (failures_ == kFailures)
      events_ = std::make_unique<EventTimer>(device_, "its kernels did not match the records");
    return whole;
  }
  std::string how() const override {
    return events_ ? events_->how() : "kernels are timed by CUPTI inside the captured program";
  }

 private:
  static constexpr int kFailures = 2;
  struct Run {
    ProgramRun* out;
    const std::vector<int>* nodes;
  };

  /// False if the activities do not match the records: a program that was not captured yet, or activities that arrived
  /// too late.
  bool attribute(std::vector<DeviceActivity>& all, StepTrace& trace) const {
    std::map<std::uint32_t, std::vector<DeviceActivity*>> launches;  // of graphs
    for (auto& a : all)
      if (a.node) launches[a.correlation].push_back(&a);
    if (launches.size() != runs_.size()) return false;
    std::size_t r = 0;
    for (auto& [correlation, list] : launches) {
      const auto& [out, nodes] = runs_[r];
      std::size_t expected = 0;
      for (const int n : *nodes) expected += static_cast<std::size_t>(n);
      if (list.size() != expected) return false;
      std::sort(list.begin(), list.end(), [](auto* a, auto* b) { return a->node < b->node; });
      fill(*out, *nodes, list, static_cast<int>(r++));
    }
    for (const auto& a : all) trace.device.push_back(a.span);
    std::sort(trace.device.begin(), trace.device.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    return true;
  }
  static void fill(ProgramRun& out, const std::vector<int>& nodes, const std::vector<DeviceActivity*>& list, int run) {
    out.times.resize(nodes.size());
    std::size_t next = 0;
    std::int64_t last = list.empty() ? out.host.end : list[0]->span.begin;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      RecordTime t{last, last};  // a record without kernels, a view
      for (int k = 0; k < nodes[i]; ++k) {
        auto& span = list[next++]->span;
        span.run = run, span.record = static_cast<int>(i);
        if (k == 0) t = {span.begin, span.end};
        t.begin = std::min(t.begin, span.begin), t.end = std::max(t.end, span.end);
      }
      out.times[i] = t;
      last = std::max(last, t.end);
    }
  }

  std::unique_ptr<Cupti> cupti_;
  Device device_;
  std::map<const Instance*, std::vector<int>> nodes_;  // for each record
  std::vector<Run> runs_;
  int failures_ = 0;
  std::unique_ptr<EventTimer> events_;  // once CUPTI has failed
};

}  // namespace

std::unique_ptr<RecordTimer> gpu_timer(Device device) {
  std::string why;
  if (auto cupti = Cupti::open(why)) return std::make_unique<CuptiTimer>(std::move(cupti), device);
  return std::make_unique<EventTimer>(device, why);
}

#else

std::unique_ptr<RecordTimer> gpu_timer(Device) {
  fail("profile", "this build has no CUDA: configure it with --preset cuda on a machine with nvcc");
}

#endif

}  // namespace hpcdl::lab
