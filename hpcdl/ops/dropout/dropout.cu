#include "hpcdl/ops/dropout/dropout.h"

#include "hpcdl/ops/fuse/device.h"

namespace hpcdl::cuda {
namespace {

struct Drop {
  fuse::Out y;
  fuse::In x;
  std::int64_t cols;  // of a row of elements, for their index
  const StepParams* params;
  Dropout::Args args;

  template <class At> __device__ void operator()(const At& at) const {
    const Rng draws{params->seed, args.rng_stream ^ (static_cast<std::uint64_t>(params->step) << 32)};
    const float scale = 1 / (1 - args.p);
    auto v = at.load(x);
    const auto index = static_cast<std::uint64_t>(at.row * cols + at.col);
    Philox4 words{};
    std::uint64_t block = ~0ull;
#pragma unroll
    for (int i = 0; i < At::N; ++i) {
      const std::uint64_t k = index + static_cast<std::uint64_t>(i);
      if (k / 4 != block) words = draws.block(block = k / 4);
      const unsigned w = k % 4 == 0 ? words[0] : k % 4 == 1 ? words[1] : k % 4 == 2 ? words[2] : words[3];
      v.v[i] = static_cast<float>(w >> 8) * 0x1p-24f < args.p ? 0.0f : v.v[i] * scale;
    }
    at.store(y, v);
  }
};

}  // namespace

void dropout(Stream& s, Grad y, View x, const Dropout::Args& a) {
  const auto plane = fuse::plane_of(y, x);
  visit_dtype(x.dtype(), [&]<class T>() { fuse::for_each<T>(s, plane, Drop{y, x, plane.cols, s.kernel_params(), a}, "dropout"); });
}

}  // namespace hpcdl::cuda
