#include "hpcdl/ops/cast/cast.h"

#include "hpcdl/cuda/element.cuh"
#include "hpcdl/ops/fuse/device.cuh"

namespace hpcdl::cuda {
namespace {

template <class From> struct Copy {
  fuse::Out y;
  fuse::In x;
  template <class At> __device__ void operator()(const At& at) const { at.store(y, at.template load<From>(x)); }
};

/// A thread has four neighbours of a row, in one access where rows are `whole`.
template <class To, class From>
__global__ void convert(To* y, const From* x, long long rows, long long cols, long long y_ld, long long x_ld,
                        bool whole) {
  const long long fours = (cols + 3) / 4, step = static_cast<long long>(gridDim.x) * blockDim.x;
  const auto one = [](From v) {
    if constexpr (is_f8<To>) return to_f8<To>(widen(v));
    else return narrow<To>(from_f8(v));
  };
  for (long long t = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; t < rows * fours; t += step) {
    const long long row = t / fours, col = t % fours * 4;
    const From* from = x + row * x_ld + col;
    To* to = y + row * y_ld + col;
    if (whole) {
      struct alignas(4 * sizeof(From)) FourFrom {
        From of[4];
      };
      struct alignas(4 * sizeof(To)) FourTo {
        To of[4];
      } out;
      const FourFrom in = *reinterpret_cast<const FourFrom*>(from);
#pragma unroll
      for (int i = 0; i < 4; ++i) out.of[i] = one(in.of[i]);
      *reinterpret_cast<FourTo*>(to) = out;
    } else {
      for (int i = 0; i < 4 && col + i < cols; ++i) to[i] = one(from[i]);
    }
  }
}
template <class To, class From> void convert(Stream& s, const Tensor& y, View x) {
  if (y.size() == 0) return;
  const auto whole = [&](const View& v) {
    return v.cols() % 4 == 0 && v.row_stride() % 4 == 0 &&
           reinterpret_cast<std::uintptr_t>(v.data()) % static_cast<std::uintptr_t>(4 * dtype_bytes(v.dtype())) == 0;
  };
  const auto blocks = std::min<std::int64_t>(y.rows() * ((y.cols() + 3) / 4) / 256 + 1, 32 * multiprocessors(s));
  convert<<<static_cast<unsigned>(blocks), 256, 0, queue(s)>>>(y.ptr<To>(), x.ptr<From>(), y.rows(), y.cols(),
                                                               y.row_stride(), x.row_stride(), whole(y) && whole(x));
  launched("cast");
}

}  // namespace

void cast(Stream& s, Grad y, View x) {
  if (is_f8_dtype(y.dtype()))
    return visit_f8(y.dtype(),
                    [&]<class To>() { visit_dtype(x.dtype(), [&]<class From>() { convert<To, From>(s, y, x); }); });
  if (is_f8_dtype(x.dtype()))
    return visit_f8(x.dtype(),
                    [&]<class From>() { visit_dtype(y.dtype(), [&]<class To>() { convert<To, From>(s, y, x); }); });
  visit_dtype(x.dtype(), [&]<class From>() {
    visit_dtype(y.dtype(), [&]<class To>() { fuse::for_each<To>(s, fuse::plane_of(y, x), Copy<From>{y, x}, "cast"); });
  });
}

}  // namespace hpcdl::cuda
