#if HPCDL_CUDA
#include <cmath>

#include "hpcdl/core/cuda_runtime.h"
#include "tools/tune/tunables.h"

namespace hpcdl::lab::tune {

const Tensor& GpuTunable::allocate(const Spec& spec) {
  return memory_.emplace_back(spec, bench_.stream.device()).tensor;
}

const Tensor& GpuTunable::random(const Spec& spec) {
  const Tensor& t = allocate(spec);
  fill_random(bench_.stream, t, seed_++);
  return t;
}

void GpuTunable::keep_as_wanted(std::string name, const Tensor& t, double allowed) {
  const auto& s = t.shape();
  Checked c{t, {t.data(), t.dtype(), s[2], s[1] * s[2]}, samples_of(s[0], s[1], s[2]), {}};
  c.want.value = gather(bench_.stream, c.at, c.where);
  c.what = std::move(name), c.allowed = allowed;
  results_.push_back(std::move(c));
}

std::string GpuTunable::verify(int id) {
  for (const auto& c : results_)
    if (c.before) copy(bench_.stream, c.whole, *c.before);
    else
      cuda::check(cudaMemsetAsync(c.whole.data(), c.poison, static_cast<std::size_t>(c.whole.bytes()),
                                  cuda::queue(bench_.stream)),
                  "poison");
  run(id);
  for (const auto& c : results_) {
    const auto got = gather(bench_.stream, c.at, c.where);
    if (!c.want.size.empty()) {
      if (auto wrong = difference(c.at, c.want, got, c.where.dtype, c.terms, c.rounding); !wrong.empty()) return wrong;
      continue;
    }
    double off = 0, size = 0;
    for (std::size_t i = 0; i < got.size(); ++i)
      off += (got[i] - c.want.value[i]) * (got[i] - c.want.value[i]), size += c.want.value[i] * c.want.value[i];
    const double error = std::sqrt(off / size);
    if (!(error <= c.allowed))
      return fmt::format("{} by {:.2g} of its size, but only {:.2g} is allowed", c.what, error, c.allowed);
  }
  return "";
}

}  // namespace hpcdl::lab::tune
#endif
