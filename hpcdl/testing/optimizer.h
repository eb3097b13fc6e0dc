#pragma once
// Parameters of awkward sizes, their gradients and state, for tests of optimizers, and the same in double.

#include <cstring>
#include <memory>
#include <vector>

#include "hpcdl/core/buffer.h"
#include "hpcdl/core/rng.h"
#include "hpcdl/graph/executable.h"
#include "hpcdl/graph/graph.h"

namespace hpcdl::testing {

inline double element(const Tensor& t, std::int64_t k) {
  return t.dtype() == DType::bf16 ? static_cast<double>(static_cast<float>(t.ptr<bf16>()[k])) : static_cast<double>(t.ptr<float>()[k]);
}
inline void set_element(const Tensor& t, std::int64_t k, double v) {
  if (t.dtype() == DType::bf16) t.ptr<bf16>()[k] = bf16(static_cast<float>(v));
  else t.ptr<float>()[k] = static_cast<float>(v);
}

struct OptimizedTensor {
  OwnedTensor value, gradient, copy;  // copy: of every second tensor
  std::vector<OwnedTensor> state;
  std::vector<double> p;                        // value
  std::vector<std::vector<double>> wanted;      // state
  bool decay = false;
};

struct OptimizerModel {
  std::vector<OptimizedTensor> tensors;
  StepParams params;
  std::unique_ptr<Executable> exe;  // made by the test

  /// `states`: f32 tensors that an optimizer keeps for each parameter, zeros at first.
  OptimizerModel(DType value, DType gradient, int states) {
    std::uint64_t i = 0;
    for (std::int64_t n : {1, 15, 8192, 0, 20011, 8193}) {
      OptimizedTensor t;
      t.value = OwnedTensor({{n}, value}), t.gradient = OwnedTensor({{n}, gradient});
      if (i % 2) t.copy = OwnedTensor({{n}, DType::bf16});
      for (int k = 0; k < states; ++k) t.state.emplace_back(Spec{{n}, DType::f32}), t.wanted.emplace_back(static_cast<std::size_t>(n));
      for (std::int64_t k = 0; k < n; ++k) {
        set_element(t.value.tensor, k, Rng{1, i}.normal(static_cast<std::uint64_t>(k)));
        t.p.push_back(element(t.value.tensor, k));
      }
      t.decay = i++ % 3 != 0;
      tensors.push_back(std::move(t));
    }
  }

  /// Step 1 is clipped, step 2 skipped.
  void run(int threads, int step, float lr) {
    params.step = step;
    params.lr = lr / static_cast<float>(step + 1);
    params.grad_scale = 0.5f;
    params.clip_factor = step == 1 ? 0.25f : 1;
    params.skip = step == 2;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      for (std::int64_t k = 0; k < tensors[i].gradient.tensor.size(); ++k)
        set_element(tensors[i].gradient.tensor, k, Rng{static_cast<std::uint64_t>(step + 10), i}.normal(static_cast<std::uint64_t>(k)));
    Pool pool(threads);
    Stream s(pool, &params);
    exe->run(s);
  }
  /// The gradient as an update takes it.
  double gradient(const OptimizedTensor& t, std::size_t k) const {
    return element(t.gradient.tensor, static_cast<std::int64_t>(k)) * static_cast<double>(params.grad_scale * params.clip_factor);
  }
  bool same_values(const OptimizerModel& other) const {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto &a = tensors[i].value.tensor, &b = other.tensors[i].value.tensor;
      if (a.bytes() != 0 && std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.bytes())) != 0) return false;
    }
    return true;
  }
};

}  // namespace hpcdl::testing
