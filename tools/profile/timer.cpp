#include "tools/profile/timer.h"

#include "hpcdl/core/error.h"

namespace hpcdl::lab {

namespace {

/// Reading the working time of a thread loads a cache line from its core: with more threads than this, that would
/// affect short records.
constexpr int kMeteredThreads = 32;

/// Records run one after the other, so one reading of the clock per record (some 25 ns) gives its end and the next
/// one's beginning. The time of a record that other threads continue is the time that others wait for it.
class CpuTimer : public RecordTimer {
 public:
  void run(const Instance& exe, Stream& s, ProgramRun& out) override {
    const auto n = exe.program().records.size();
    const auto threads = static_cast<std::size_t>(s.pool().threads());
    const bool meter = threads > 1 && threads <= kMeteredThreads;
    out.times.resize(n);
    if (meter) {
      out.busy.resize(n * threads);
      busy_.assign(threads, {});
      s.pool().meter(busy_.data());
    }
    auto begin = now_ns();
    auto* busy = out.busy.data();
    const auto took = [&](int i) {
      const auto end = now_ns();
      out.times[static_cast<std::size_t>(i)] = {begin, end};
      begin = end;
    };
    const auto after = [&](int i) {
      took(i);
      if (!meter) return;
      for (auto& thread : busy_) *busy++ = std::exchange(thread.nanoseconds, 0);
    };
    exe.run(s, 0, static_cast<int>(n), after, [&](int i, Ticket::Span ran) {
      took(i);
      out.exchanges.push_back({ns_of(ran.begin), ns_of(ran.end), i});
    });
    s.pool().meter(nullptr);
  }

 private:
  std::vector<Pool::Busy> busy_;
};

}  // namespace

std::unique_ptr<RecordTimer> record_timer(Device device) {
  if (device.is_cuda()) return gpu_timer(device);
  return std::make_unique<CpuTimer>();
}

}  // namespace hpcdl::lab
