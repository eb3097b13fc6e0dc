#include "tools/tune/gpu.h"

#include <any>

#include "hpcdl/core/error.h"

#if HPCDL_CUDA
#include "hpcdl/core/cuda_runtime.h"
#include "tools/doctor/software.h"
#include "tools/tune/tunables.h"
#endif

namespace hpcdl::lab::tune {

#if HPCDL_CUDA

namespace {

/// The wish for a call that has been noted.
template <class... Calls> Wish wish_of_any(const std::any& operands) {
  Wish wish;
  const auto take = [&]<class Call>(const Call* call) {
    if (call) wish = wish_of(*call);
  };
  (take(std::any_cast<Calls>(&operands)), ...);
  return wish;
}

}  // namespace

Identity identity_of(Device device, const std::string& version) {
  cudaDeviceProp p;
  cuda::check(cudaGetDeviceProperties(&p, device.index), "cudaGetDeviceProperties");
  std::string driver = find_gpus(Places::here()).driver;
  if (driver.empty()) {
    int n = 0;
    cuda::check(cudaDriverGetVersion(&n), "cudaDriverGetVersion");
    driver = fmt::format("for CUDA {}.{}", n / 1000, n % 1000 / 10);
  }
  return {p.name, driver, version};
}

double Bench::cold(const std::function<void()>& call) {
  clock.flush();
  return clock.time(call, 1);
}

Wishes wishes_of(const Instance& exe, Stream& s) {
  require(s.device().is_cuda(), "tune", "a program on {} has nothing to choose", "a CPU");
  WayNotes notes;
  {
    const WithWayNotes with(s, notes);
    exe.prepare(s);
  }
  Wishes found;
  for (const auto& [key, note] : notes.all())
    if (note.operands.has_value())
      found.emplace(key, wish_of_any<cuda::Gemm, cuda::Conv, cuda::AttentionShape, cuda::Int4Shape>(note.operands));
  return found;
}

void wish_int4(Wishes& to, std::int64_t rows, std::int64_t n, std::int64_t k, std::int64_t group) {
  const cuda::Int4Shape shape{.rows = rows, .n = n, .k = k, .group = group};
  const auto f = fields_of(shape);
  to.emplace(WayKey{"int4_linear", {f.begin(), f.end()}}, wish_of(shape));
}

#else

Identity identity_of(Device, const std::string& version) { return {"no GPU", "none", version}; }
double Bench::cold(const std::function<void()>&) { return 0; }
Wishes wishes_of(const Instance&, Stream&) { return {}; }
void wish_int4(Wishes&, std::int64_t, std::int64_t, std::int64_t, std::int64_t) {}

#endif

}  // namespace hpcdl::lab::tune
