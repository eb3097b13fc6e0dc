#pragma once
// The calls on a GPU that have choices, each with operands of its own to measure them on. Only for builds with CUDA.

#include <deque>

#include "hpcdl/ops/attention/device_attention.h"
#include "hpcdl/ops/conv2d/device_conv.h"
#include "hpcdl/ops/int4_linear/int4_ways.h"
#include "hpcdl/ops/matmul/device_gemm.h"
#include "tools/tune/gpu.h"
#include "tools/tune/reference.h"

namespace hpcdl::lab::tune {

/// Shape, types and epilogue of a call; its addresses are not kept.
Wish wish_of(const cuda::Gemm& g);
Wish wish_of(const cuda::Conv& c);
Wish wish_of(const cuda::AttentionShape& s);
Wish wish_of(const cuda::Int4Shape& s);

/// What all of them share: memory, poisoned results, samples of them that are compared, the clock.
class GpuTunable : public Tunable {
 public:
  std::string verify(int id) override;
  double seconds(int id) override {
    return bench_.cold([&] { run(id); });
  }

 protected:
  /// Some elements of a result, and what they must be.
  struct Checked {
    Tensor whole;  // filled with `poison` before each run, or with `before` if it is there
    Elements where;
    std::vector<Sample> at;
    Wanted want;
    std::int64_t terms = 0;  // of each sum
    double rounding = 0;     // relative, of each product
    std::string what = {};   // without sizes in `want`, all samples are compared together:
    double allowed = 0;      // root of the mean square error, relative to that of the values
    int poison = 0xff;       // NaN
    const Tensor* before = nullptr;
  };

  template <class Fields> GpuTunable(Bench& bench, std::string_view op, const Fields& f) : bench_(bench) {
    what.key = {std::string(op), {f.begin(), f.end()}};
  }
  virtual void run(int id) = 0;

  /// Memory of this call; of random numbers, another series for each.
  const Tensor& allocate(const Spec& spec);
  const Tensor& random(const Spec& spec);
  const Tensor& random(std::int64_t n, DType d) { return random(Spec{{n}, d}); }
  /// A result (B, R, C) must be what is there now, within `allowed`.
  void keep_as_wanted(std::string name, const Tensor& t, double allowed);

  template <class List> static std::vector<Candidate> named(const List& all) {
    std::vector<Candidate> list;
    for (const auto& c : all) list.push_back({c.id, std::string(c.name)});
    return list;
  }

  Bench& bench_;
  std::vector<Checked> results_;

 private:
  std::deque<OwnedTensor> memory_;
  std::uint64_t seed_ = 1;
};

/// `T(bench, call)` tunes it.
template <class T, class Call> Wish wish_for(std::string text, const Call& c) {
  return {std::move(text), [c](Bench& bench) { return std::make_unique<T>(bench, c); }};
}

}  // namespace hpcdl::lab::tune
