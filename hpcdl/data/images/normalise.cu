#include "hpcdl/cuda/launch.h"
#include "hpcdl/data/images/normalise.h"

namespace hpcdl::data {
namespace {

constexpr int kThreads = 256;

struct Images {
  float* to;
  const std::uint8_t* from;
  const std::int64_t* ids;
  const float* table;
  std::int64_t pixels;  // of one image, times 3
};

/// A block writes kThreads * N elements of one image. N = 4 if every image begins at a whole word.
template <int N> __global__ void __launch_bounds__(kThreads) look_up(Images a, unsigned blocks) {
  const std::int64_t image = blockIdx.x / blocks, at = (std::int64_t{blockIdx.x % blocks} * kThreads + threadIdx.x) * N;
  if (at >= a.pixels) return;
  const bool none = a.ids[image] < 0;
  std::uint8_t bytes[N];
  float out[N];
  const auto* from = a.from + image * a.pixels + at;
  if constexpr (N == 4) *reinterpret_cast<std::uint32_t*>(bytes) = *reinterpret_cast<const std::uint32_t*>(from);
  else bytes[0] = *from;
  const auto channel = static_cast<unsigned>(at % 3);
#pragma unroll
  for (unsigned i = 0; i < N; ++i) out[i] = none ? 0.0f : __ldg(a.table + bytes[i] * 3u + (channel + i) % 3u);
  auto* to = a.to + image * a.pixels + at;
  if constexpr (N == 4) *reinterpret_cast<float4*>(to) = *reinterpret_cast<float4*>(out);
  else *to = out[0];
}

}  // namespace

void normalise(const Stream& s, const Tensor& to, const View& pixels, const View& ids, const View& table) {
  require(pixels.dtype() == DType::u8 && to.dtype() == DType::f32 && to.shape() == pixels.shape() && to[-1] == 3,
          "data", "expected pixels U8 and a result F32 of the same shape, with a table (256, 3) F32");
  if (to.size() == 0) return;
  const Images a{to.ptr<float>(), pixels.ptr<std::uint8_t>(), ids.ptr<std::int64_t>(), table.ptr<float>(),
                 to.size() / to[0]};
  const auto run = [&](auto kernel, std::int64_t n) {
    const unsigned blocks = cuda::blocks_for(a.pixels, kThreads * n);
    kernel<<<cuda::blocks_for(to[0] * std::int64_t{blocks}, 1), kThreads, 0, cuda::queue(s)>>>(a, blocks);
  };
  if (a.pixels % 4 == 0) run(look_up<4>, 4);
  else run(look_up<1>, 1);
  cuda::launched("normalise");
}

}  // namespace hpcdl::data
