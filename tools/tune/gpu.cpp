#include "tools/tune/gpu.h"

#include <algorithm>
#include <mutex>

#include "hpcdl/core/error.h"

#if HPCDL_CUDA
#include "hpcdl/core/cuda_runtime.h"
#include "tools/doctor/software.h"
#include "tools/tune/tunables.h"
#endif

namespace hpcdl::lab::tune {

#if HPCDL_CUDA

namespace {

/// Ops that look up a choice.
constexpr std::string_view kAsking[] = {"int4_linear", "attention", "linear", "matmul", "mlp", "lm_head", "conv2d"};

std::mutex mutex;
Wishes* collecting = nullptr;

/// The choice for a call, which is noted while choices are collected.
template <class Call> int choice(std::string_view op, const Call& call, bool tunable = true) {
  const auto fields = fields_of(call);
  if (collecting && tunable) {
    const std::lock_guard lock(mutex);
    Key key{std::string(op), {fields.begin(), fields.end()}};
    if (collecting && !collecting->contains(key)) collecting->emplace(std::move(key), wish_of(call));
  }
  return chosen(op, fields);
}

int choose_int4(const Stream&, const cuda::Int4Shape& shape) { return choice("int4_linear", shape); }
int choose_gemm(const cuda::Gemm& g) { return choice("gemm", g); }
int choose_conv(Stream&, const cuda::Conv& c) { return choice("conv2d", c); }

/// With one query, or with a cache, there is only one kernel.
template <class Call> int choose_attention(const Stream& s, const Call& c) {
  if (c.args.cached || c.q[1] == 1) return -1;
  const auto shape = shape_of(s, c);
  return choice(shape.op(), shape, shape.aligned);
}

/// "linear", "linear.grad" and "linear+bias" are the op linear.
bool asks(const Record& r) {
  return r.phase != Phase::update &&
         std::any_of(std::begin(kAsking), std::end(kAsking), [&](std::string_view op) { return r.op.starts_with(op); });
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

void follow_choices() {
  cuda::set_gemm_chooser(choose_gemm);
  cuda::set_conv_chooser(choose_conv);
  cuda::set_int4_chooser(choose_int4);
  cuda::set_attention_chooser(
      {.forward = choose_attention<cuda::Attend>, .backward = choose_attention<cuda::AttendBackward>});
}

Wishes wishes_of(const Instance& exe, Stream& s) {
  require(s.device().is_cuda(), "tune", "a program on {} has nothing to choose", "a CPU");
  follow_choices();
  Wishes found;
  {
    const std::lock_guard lock(mutex);
    collecting = &found;
  }
  const auto stop = [] {
    const std::lock_guard lock(mutex);
    collecting = nullptr;
  };
  try {
    if (exe.arena())
      cuda::check(
          cudaMemsetAsync(exe.arena()->data(), 0, static_cast<std::size_t>(exe.arena()->bytes()), cuda::queue(s)),
          "clear");
    const auto& records = exe.program().records;
    for (int i = 0; i < static_cast<int>(std::ssize(records)); ++i)
      if (asks(records[static_cast<std::size_t>(i)])) exe.run(s, i, i + 1, {});
    s.synchronize();
  } catch (...) {
    stop();
    throw;
  }
  stop();
  return found;
}

void wish_int4(Wishes& to, std::int64_t rows, std::int64_t n, std::int64_t k, std::int64_t group) {
  const cuda::Int4Shape shape{.rows = rows, .n = n, .k = k, .group = group};
  const auto f = fields_of(shape);
  to.emplace(Key{"int4_linear", {f.begin(), f.end()}}, wish_of(shape));
}

#else

Identity identity_of(Device, const std::string& version) { return {"no GPU", "none", version}; }
double Bench::cold(const std::function<void()>&) { return 0; }
void follow_choices() {}
Wishes wishes_of(const Instance&, Stream&) { return {}; }
void wish_int4(Wishes&, std::int64_t, std::int64_t, std::int64_t, std::int64_t) {}

#endif

}  // namespace hpcdl::lab::tune
