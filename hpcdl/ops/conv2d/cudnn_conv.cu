#include "hpcdl/ops/conv2d/cudnn_conv.h"

#if HPCDL_CUDNN

#include <array>
#include <map>

#include "hpcdl/cuda/workspace.h"
#include "hpcdl/ops/conv2d/cudnn_plan.h"
#include "hpcdl/ops/conv2d/own_conv.h"

namespace hpcdl::cuda {
namespace {

constexpr std::size_t kBytes = kWorkspaceBytes - kConvWeightBytes;

using Key = std::array<std::int64_t, 13>;
Key key_of(const Conv& c) {
  const auto& s = c.shape;
  const std::int64_t bits = static_cast<int>(c.pass) | static_cast<int>(c.compute) << 4 | static_cast<int>(c.out_dtype) << 10 | (c.bias.data ? 1 : 0) << 16 |
                            (c.accumulate ? 1 : 0) << 17;
  return {bits, s.n, s.h, s.w, s.i, s.oh, s.ow, s.o, s.kh, s.kw, s.stride, s.pad, s.dilation};
}

/// Never destroyed: captured work may hold the library's kernels.
const std::optional<cudnn::Plan>& plan(const Stream& s, const cudnn::Session& session, const Conv& c) {
  static auto* const all = new std::map<int, std::map<Key, std::optional<cudnn::Plan>>>();
  auto& plans = (*all)[s.device().index];
  const Key key = key_of(c);
  if (const auto known = plans.find(key); known != plans.end()) return known->second;
  return plans.emplace(key, cudnn::plan_of(c, {.handle = session.handle()}, static_cast<std::int64_t>(kBytes))).first->second;
}

/// What cuDNN is asked in place of c: a f32 weight beside 16-bit images is given to it as a copy in their type.
Conv asked(const Conv& c) {
  Conv a = c;
  const bool copied = c.pass != ConvPass::weight && c.w.dtype == DType::f32 && static_cast<std::size_t>(c.shape.o * c.shape.k()) * 2 <= kConvWeightBytes;
  if (copied) a.w.dtype = c.compute;
  return a;
}

}  // namespace

bool fits_cudnn(Stream& s, const Conv& c) {
  const Conv a = asked(c);
  if (!cudnn::expressible(a) || !cudnn::Library::get().whole) return false;
  return plan(s, cudnn::Session(s), a).has_value();
}

void run_cudnn(Stream& s, const Conv& given) {
  const Conv c = with_weight_copied(s, given);
  cudnn::Session session(s);
  const auto& planned = plan(s, session, c);
  require(planned.has_value(), "conv2d", "cuDNN has no way to compute this convolution: fits_cudnn() says so first");
  std::vector<std::int64_t> ids;
  std::vector<void*> places;
  const auto add = [&](cudnn::Id id, const void* data) { ids.push_back(id), places.push_back(const_cast<void*>(data)); };
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

bool fits_cudnn(Stream&, const Conv&) { return false; }
void run_cudnn(Stream&, const Conv&) { fail("conv2d", "this build has no cuDNN"); }

}  // namespace hpcdl::cuda

#endif
