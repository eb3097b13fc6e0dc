#include "hpcdl/ops/dropout/dropout.h"

#include "hpcdl/ops/fuse/device.h"

namespace hpcdl::cuda {
namespace {

struct Drop {
  using OneAccess = void;
  fuse::Out y;
  fuse::In x;
  std::int64_t cols, first;  // of a row of elements, and the first one, for their index
  const StepParams* params;
  Dropout::Args args;

  template <class At> __device__ void operator()(const At& at) const {
    const Rng draws{params->seed, args.rng_stream ^ (static_cast<std::uint64_t>(params->step) << 32)};
    const float scale = 1 / (1 - args.p);
    const auto dropped = static_cast<unsigned>(::ceilf(args.p * 0x1p24f)) << 8;  // uniform() < p, as a bound of the bits
    auto v = at.load(x);
    const auto row = static_cast<std::uint64_t>(first + at.row * cols);
    if (row % 4 == 0) {  // four neighbours share a block of draws
#pragma unroll
      for (int i = 0; i < At::N; i += 4) {
        const Philox4 words = draws.block((row + static_cast<std::uint64_t>(at.column(i))) / 4);
#pragma unroll
        for (int j = 0; j < 4; ++j) v.v[i + j] = words[static_cast<std::size_t>(j)] < dropped ? 0.0f : v.v[i + j] * scale;
      }
    } else {
#pragma unroll
      for (int i = 0; i < At::N; ++i) v.v[i] = draws.bits(row + static_cast<std::uint64_t>(at.column(i))) < dropped ? 0.0f : v.v[i] * scale;
    }
    at.store(y, v);
  }
};

}  // namespace

void dropout(Stream& s, Grad y, View x, const Dropout::Args& a) {
  const auto plane = fuse::plane_of(y, x);
  visit_dtype(x.dtype(), [&]<class T>() { fuse::for_each<T>(s, plane, Drop{y, x, plane.cols, a.part * x.size(), s.kernel_params(), a}, "dropout"); });
}

}  // namespace hpcdl::cuda
