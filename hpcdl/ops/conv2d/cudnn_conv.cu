#include "hpcdl/ops/conv2d/cudnn_conv.h"

#if HPCDL_CUDNN

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <vector>

#include "hpcdl/cuda/workspace.h"
#include "hpcdl/ops/conv2d/cudnn_plan.h"
#include "hpcdl/ops/conv2d/implicit_gemm.h"

namespace hpcdl::cuda {
namespace {

constexpr std::size_t kBytes = kWorkspaceBytes - kConvWeightBytes;

using Key = std::array<std::int64_t, 13>;
Key key_of(const Conv& c) {
  const auto& s = c.shape;
  const std::int64_t bits = static_cast<int>(c.pass) | static_cast<int>(c.compute) << 4 |
                            static_cast<int>(c.out_dtype) << 10 | (c.bias.data ? 1 : 0) << 16 |
                            (c.accumulate ? 1 : 0) << 17;
  return {bits, s.n, s.h, s.w, s.i, s.oh, s.ow, s.o, s.kh, s.kw, s.stride, s.pad, s.dilation};
}

struct Plans {
  std::vector<cudnn::Plan> found;
  int asked = 0;
};

/// The library's choice number `choice`, or null. A caller that requests a choice other than the first will request
/// all.
const cudnn::Plan* plan(const Stream& s, const cudnn::Session& session, const Conv& c, int choice) {
  static auto* const all =
      new std::map<int, std::map<Key, Plans>>();  // never destroyed: captured work may use its kernels
  auto& [found, asked] = (*all)[s.device().index][key_of(c)];
  if (choice >= asked) {
    asked = choice == 0 ? 1 : kCudnnChoices;
    auto plans = cudnn::plans_of(c, {.handle = session.handle()}, static_cast<std::int64_t>(kBytes), asked);
    const auto known = std::min(found.size(), plans.size());
    std::move(plans.begin() + static_cast<std::ptrdiff_t>(known), plans.end(), std::back_inserter(found));
  }
  return choice < std::ssize(found) ? &found[static_cast<std::size_t>(choice)] : nullptr;
}

/// The problem that cuDNN receives for c: an f32 weight with 16-bit images is replaced by a copy in their type.
Conv asked(const Conv& c) {
  Conv a = c;
  const bool copied = c.pass != ConvPass::weight && c.w.dtype == DType::f32 &&
                      static_cast<std::size_t>(c.shape.o * c.shape.k()) * 2 <= kConvWeightBytes;
  if (copied) a.w.dtype = c.compute;
  return a;
}

}  // namespace

bool fits_cudnn(Stream& s, const Conv& c, int choice) {
  const Conv a = asked(c);
  if (!cudnn::expressible(a) || !cudnn::Library::get().whole) return false;
  return plan(s, cudnn::Session(s), a, choice) != nullptr;
}

void run_cudnn(Stream& s, const Conv& given, int choice) {
  const Conv c = with_weight_copied(s, given);
  cudnn::Session session(s);
  const cudnn::Plan* const planned = plan(s, session, c, choice);
  require(planned, "conv2d", "cuDNN has no way to compute this convolution: fits_cudnn() says so first");
  std::vector<std::int64_t> ids;
  std::vector<void*> places;
  const auto add = [&](cudnn::Id id, const void* data) {
    ids.push_back(id), places.push_back(const_cast<void*>(data));
  };
  if (c.pass != ConvPass::data) add(cudnn::kX, c.x.data);
  if (c.pass != ConvPass::weight) add(cudnn::kW, c.w.data);
  if (c.pass != ConvPass::forward) add(cudnn::kDy, c.dy.data);
  if (c.bias.data) add(cudnn::kBias, c.bias.data);
  add(cudnn::kOut, c.out);
  session.run(s, *planned, ids, places, static_cast<std::byte*>(workspace(s)) + kConvWeightBytes);
}

}  // namespace hpcdl::cuda

#else

namespace hpcdl::cuda {

bool fits_cudnn(Stream&, const Conv&, int) { return false; }
void run_cudnn(Stream&, const Conv&, int) { fail("conv2d", "this build has no cuDNN"); }

}  // namespace hpcdl::cuda

#endif
