#include "hpcdl/ops/fp8_amax/fp8_amax.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "hpcdl/program/check.h"
#include "hpcdl/program/on.h"

namespace hpcdl {
namespace {

void raise(float& to, const View& magnitudes) {
  const float* x = magnitudes.ptr<float>();
  for (std::int64_t i = 0; i < magnitudes.size(); ++i)
    if (std::isfinite(x[i])) to = std::max(to, x[i]);
}

void step(const Tensor& history, bool skip) {
  const std::int64_t tensors = history[1];
  float* const h = history.ptr<float>();
  if (!skip) std::memmove(h + tensors, h, static_cast<std::size_t>(tensors * kAmaxSteps) * sizeof(float));
  std::fill_n(h, tensors, 0.0f);
}

}  // namespace

void Fp8Amax::check_record(const RawRecord& r) {
  r.require_count(1 + kTensors);
  require_spec(name, "row 0 of its columns", r.contiguous(0), {{kTensors}, DType::f32});
  for (std::size_t i = 1; i <= kTensors; ++i) {
    const Spec s = r.contiguous(i);
    require(s.dtype == DType::f32 && s.shape.rank() == 1, name, "magnitudes must be F32 (n), got {}", to_string(s));
  }
}
void Fp8Amax::run(Stream& s, const Grad* t, const void*) {
  on(
      s,
      [&](auto, Pool&) {
        for (int i = 0; i < kTensors; ++i) raise(t[0].ptr<float>()[i], t[1 + i]);
      },
      [&](auto& g) { cuda::fp8_amax(g, t[0], t[1], t[2], t[3]); });
}

void Fp8Amax::Step::check_record(const RawRecord& r) {
  r.require_count(1);
  require(is_amax_history(r.contiguous(0), 0), name, "expected a history ({}, T), got {}", 1 + kAmaxSteps,
          to_string(r.spec(0)));
}
void Fp8Amax::Step::run(Stream& s, const Grad* t, const void*) {
  on(s, [&](auto, Pool&) { step(t[0], s.params().skip != 0); }, [&](auto& g) { cuda::fp8_amax_step(g, t[0]); });
}

}  // namespace hpcdl
