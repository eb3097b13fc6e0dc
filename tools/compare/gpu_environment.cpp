#include "tools/compare/gpu_environment.h"

#include "hpcdl/core/error.h"
#include "hpcdl/core/units.h"

#if HPCDL_CUDA
#include "hpcdl/core/cuda_runtime.h"
#include "tools/compare/stopwatch.h"
#endif

namespace hpcdl::lab::compare {

#if HPCDL_CUDA

namespace {

std::int64_t sweep_bytes(Device d) {
  int l2 = 0;
  cuda::check(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, d.index), "cudaDeviceGetAttribute");
  return std::int64_t{4} * (l2 > 0 ? l2 : 64 << 20);
}

}  // namespace

GpuEnvironment::GpuEnvironment(Pool& pool, const Stream& stream)
    : HostEnvironment(pool), stream_(stream), sweep_(sweep_bytes(stream.device()), stream.device()) {}

void GpuEnvironment::flush() {
  cuda::check(cudaMemsetAsync(sweep_.data(), 1, static_cast<std::size_t>(sweep_.bytes()), cuda::queue(stream_)),
              "flush of L2");
}

double GpuEnvironment::time(const std::function<void()>& call, int calls) {
  Stopwatch watch;
  watch.start(cuda::queue(stream_));
  for (int i = 0; i < calls; ++i) call();
  return watch.stop(cuda::queue(stream_));
}

std::string GpuEnvironment::flush_method() const {
  return "L2 flushed before each call by writing " + format_bytes(static_cast<double>(sweep_.bytes()));
}

#else

GpuEnvironment::GpuEnvironment(Pool& pool, const Stream& stream) : HostEnvironment(pool), stream_(stream) {
  fail("bench", "this build has no CUDA: configure it with --preset cuda on a machine with nvcc");
}
void GpuEnvironment::flush() {}
double GpuEnvironment::time(const std::function<void()>&, int) { return 0; }
std::string GpuEnvironment::flush_method() const { return ""; }

#endif

std::unique_ptr<Environment> environment_of(const Stream& s) {
  if (s.device().is_cuda()) return std::make_unique<GpuEnvironment>(s.pool(), s);
  return std::make_unique<HostEnvironment>(s.pool());
}

}  // namespace hpcdl::lab::compare
