#include "hpcdl/lab/compare/gpu_environment.h"

#include "hpcdl/core/error.h"
#include "hpcdl/core/units.h"
#include "hpcdl/lab/compare/statistics.h"

#if HPCDL_CUDA
#include "hpcdl/core/cuda_runtime.h"
#endif

namespace hpcdl::lab::compare {

#if HPCDL_CUDA

namespace {

/// Two events, and the seconds between them.
class Stopwatch {
 public:
  Stopwatch() {
    cuda::check(cudaEventCreate(&begin_), "cudaEventCreate");
    cuda::check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~Stopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  void start(cudaStream_t s) { cuda::check(cudaEventRecord(begin_, s), "cudaEventRecord"); }
  double stop(cudaStream_t s) {
    cuda::check(cudaEventRecord(end_, s), "cudaEventRecord");
    cuda::check(cudaEventSynchronize(end_), "a timed kernel");
    float ms = 0;
    cuda::check(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
    return static_cast<double>(ms) * 1e-3;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

std::int64_t sweep_bytes(Device d) {
  int l2 = 0;
  cuda::check(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, d.index), "cudaDeviceGetAttribute");
  return std::int64_t{4} * (l2 > 0 ? l2 : 64 << 20);
}

}  // namespace

GpuEnvironment::GpuEnvironment(Pool& pool, const Stream& stream) : HostEnvironment(pool), stream_(stream), sweep_(sweep_bytes(stream.device()), stream.device()) {}

void GpuEnvironment::flush() {
  cuda::check(cudaMemsetAsync(sweep_.data(), 1, static_cast<std::size_t>(sweep_.bytes()), cuda::queue(stream_)), "flush of L2");
}

double GpuEnvironment::time(const std::function<void()>& call, int calls) {
  Stopwatch watch;
  watch.start(cuda::queue(stream_));
  for (int i = 0; i < calls; ++i) call();
  return watch.stop(cuda::queue(stream_));
}

double GpuEnvironment::copy_bandwidth() {
  const std::int64_t bytes = std::int64_t{1} << 30;
  const Buffer from(bytes, stream_.device()), to(bytes, stream_.device());
  std::vector<double> rates;
  for (int i = 0; i < 9; ++i) {
    const double seconds = time([&] {
      cuda::check(cudaMemcpyAsync(to.data(), from.data(), static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, cuda::queue(stream_)), "copy");
    }, 4);
    rates.push_back(2.0 * static_cast<double>(bytes) * 4 / seconds);
  }
  return spread(rates).median;
}

std::string GpuEnvironment::flush_method() const {
  return "L2 flushed before each call by writing " + format_bytes(static_cast<double>(sweep_.bytes()));
}

#else

GpuEnvironment::GpuEnvironment(Pool& pool, const Stream& stream) : HostEnvironment(pool), stream_(stream) {
  fail("bench", "this build has no CUDA: configure with --preset cuda where nvcc is");
}
void GpuEnvironment::flush() {}
double GpuEnvironment::time(const std::function<void()>&, int) { return 0; }
double GpuEnvironment::copy_bandwidth() { return 0; }
std::string GpuEnvironment::flush_method() const { return ""; }

#endif

}  // namespace hpcdl::lab::compare
