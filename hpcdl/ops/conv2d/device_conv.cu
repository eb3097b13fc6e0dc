#include "hpcdl/ops/conv2d/device_conv.h"

#include <iterator>
#include <vector>

#include "hpcdl/core/choose_way.h"
#include "hpcdl/ops/conv2d/cudnn_conv.h"
#include "hpcdl/ops/conv2d/implicit_gemm.h"
#include "hpcdl/ops/conv2d/padded_channels.h"
#include "hpcdl/ops/matmul/device_gemm.h"

namespace hpcdl::cuda {
namespace {

constexpr std::string_view kNames[] = {"own",     "cudnn",   "gemm",     "padded",   "cudnn 2",
                                       "cudnn 3", "cudnn 4", "cudnn 5",  "cudnn 6",  "cudnn 7",
                                       "cudnn 8", "cudnn 9", "cudnn 10", "cudnn 11", "cudnn 12"};
constexpr int kCandidates = static_cast<int>(std::size(kNames));
static_assert(kCandidates == kConvCudnnNext + kCudnnChoices - 1);

/// Too little work to justify a library launch. H200, bf16, the speed of ours next to cuDNN's above this limit: forward of
/// 8 x 16 x 16 pixels, 192 channels to 88, 1 x 1 with a stride, 0.46; forward and gradients of 64 x 6 x 6, 48 to 96 with a
/// stride, 0.50, of 4 x 8 x 8, 192 to 48, 1 x 1, 0.71, of 14 x 14, 195 to 16 with a stride, 0.38.
bool tiny(const Conv& c) { return c.shape.flops() < 1 << 21; }

/// A 1 x 1 kernel that reads every pixel: rows of x times w.
bool fits_gemm(const Conv& c) {
  const auto& s = c.shape;
  return s.kh == 1 && s.kw == 1 && s.stride == 1 && s.pad == 0;
}

void run_gemm(Stream& s, const Conv& c) {
  const auto& g = c.shape;
  const auto operand = [](const ConvOperand& o, std::int64_t ld, bool transposed) {
    return GemmOperand{o.data, o.dtype, ld, transposed};
  };
  Gemm p{.compute = c.compute,
         .a = {},
         .b = {},
         .out = {.d = c.out,
                 .dtype = c.out_dtype,
                 .accumulate = c.accumulate,
                 .bias = c.bias.data,
                 .bias_dtype = c.bias.dtype}};
  switch (c.pass) {
    case ConvPass::forward:
      p.m = g.pixels(), p.n = g.o, p.k = g.i, p.a = operand(c.x, g.i, false), p.b = operand(c.w, g.i, true);
      break;
    case ConvPass::data:
      p.m = g.pixels(), p.n = g.i, p.k = g.o, p.a = operand(c.dy, g.o, false), p.b = operand(c.w, g.i, false);
      break;
    case ConvPass::weight:
      p.m = g.o, p.n = g.i, p.k = g.pixels(), p.a = operand(c.dy, g.o, true), p.b = operand(c.x, g.i, false);
      break;
  }
  p.out.ld = p.n;
  gemm(s, p);
}

/// Which of cuDNN's choices a candidate denotes that is neither our kernel nor a product.
int cudnn_choice(int candidate) { return candidate == kConvCudnn ? 0 : candidate - kConvCudnnNext + 1; }

/// Our kernels pad f32 and the outputs of images of few channels themselves.
bool fits_padded(const Conv& c) { return c.compute != DType::f32 && can_pad(c, whole_channels(c)); }

bool run_padded(Stream& s, std::span<const Conv> passes) {
  return pad_channels(s, passes, whole_channels(passes[0]), [&](std::span<const Conv> padded) {
    if (padded.size() == 2) conv_gradients(s, padded[0], padded[1]);
    else conv(s, padded[0]);
    return true;
  });
}

bool fits(Stream& s, const Conv& c, int candidate) {
  if (candidate == kConvOwn) return true;
  if (candidate == kConvPadded) return fits_padded(c);
  return candidate == kConvGemm ? fits_gemm(c) : fits_cudnn(s, c, cudnn_choice(candidate));
}

/// Measured on an H200. Times are for bf16 and 128 images, unless stated otherwise. cuDNN's f32 engines that neither
/// transform nor round operands run backward at a tenth of the speed of ours or less.
int by_shape(const Conv& c) {
  const auto& g = c.shape;
  const bool half = c.compute != DType::f32 && !tiny(c);
  const bool few = g.i < 16 / dtype_bytes(c.compute) && g.dilation == 1, odd = g.i % 8 != 0 || g.o % 8 != 0;
  if (fits_gemm(c)) {
    // Channels that are not multiples of 8: y of 256 x 20 x 20 pixels, 512 to 257, 109 us padded, 420 as a product, of 8 x
    // 22 x 22, 558 to 683, 26 and 38; dx of 8 x 29 x 29, 776 to 769, 67 by cuDNN, 38 as a product.
    if (half && odd && !few) return c.pass == ConvPass::forward ? kConvPadded : kConvGemm;
    // dx of 14 x 14 pixels, 256 channels to 1024: 22.5 us by cuDNN, 28.4 as a product; y in the opposite direction:
    // 23.3, 29.2. But y of 256 x 56 x 56 pixels, 64 channels to 256: 183, 145.
    const bool long_y = c.pass == ConvPass::forward && g.i <= 64 && g.pixels() >= 1 << 18;
    return half && g.i % 8 == 0 && c.pass != ConvPass::weight && c.w.dtype == c.compute && !long_y ? kConvCudnn
                                                                                                   : kConvGemm;
  }
  if (c.compute == DType::f32) {
    // Small ones: y, dx and dw of 16 x 16 pixels, 25 channels to 33 with a stride, 58 us by ours, 34 by cuDNN; y and dx of
    // 67 x 8 x 8, 3 to 16 by 7 x 7 with a stride, 34 and 23, but dw 10 and 26; and dx of 2 x 8 x 8, 25 to 33, 12 and 36.
    const bool small = g.flops() < 1 << 23 && odd,
               ours = c.pass == ConvPass::data ? g.stride == 1 : c.pass == ConvPass::weight && few;
    // us, cuDNN | ours: dx of images of three channels, 128 x 4 x 4 to 788, 59 | 386, 32 x 48 x 48 to 512 by 7 x 7, 236 |
    // 531; y of them by 7 x 7, 259 x 119 x 119 to 31, 442 | 840; y by 1 x 1 with a stride, 2 x 13 x 13, 545 to 32, 26 | 76,
    // 256 x 15 x 15, 46 to 16, 14 | 23.
    constexpr std::int64_t kMostTerms = 64;
    const bool theirs = few ? c.pass == ConvPass::data || (c.pass == ConvPass::forward && g.k() > kMostTerms)
                            : c.pass == ConvPass::forward && g.taps() == 1;
    return (small && !ours) || theirs ? kConvCudnn : kConvOwn;
  }
  // Ours then load and store single elements, or pad. us, padded | the fastest of PyTorch, which finds cuDNN's fastest
  // way: y and gradients of 17 x 19 x 19, 19 to 548, 85 | 121, of 32 x 32 x 32, 131 to 96, 169 | 191, of 8 x 112 x 112,
  // 24 to 387, 614 | 693, of 132 x 7 x 7, 387 to 760, 366 | 299. Images of few channels, by ours: of 53 x 70 x 70, 3 to
  // 297, 575 | 1253, of 32 x 224 x 224, 3 to 61 by 7 x 7 with a stride, 398 | 1030.
  if (half && odd && !few) return kConvPadded;
  // More columns of dx than its kernel for few channels has.
  if (half && few && c.pass == ConvPass::data && g.stride * g.stride * g.i > 16) return kConvPadded;
  if (!half || few) return kConvOwn;
  // dw of a 1 x 1 kernel with a stride, 256 images of 56 x 56 pixels, 64 channels to 128: 38 us by ours, 60 by cuDNN;
  // with 128 channels 26 and 28, with 256 26 and 23.
  if (c.pass == ConvPass::weight && g.kh == 1 && g.kw == 1 && g.i <= 128) return kConvOwn;
  return kConvCudnn;
}

/// A convolution as choose_way() sees it.
struct ConvCall {
  Stream& s;
  const Conv& c;

  static std::string_view op() { return "conv2d"; }
  static std::string_view family() { return op(); }
  auto fields() const { return fields_of(c); }
  static std::string_view name(int id) { return kNames[id]; }
  static int number(std::string_view name) { return number_of(kNames, name); }
  bool fits(int id) const { return cuda::fits(s, c, id); }
  int preferred(int id) const { return fits(id) ? id : -1; }
  int built_in() const {
    const int id = by_shape(c);
    if (fits(id)) return id;
    if (id == kConvPadded && fits(kConvCudnn)) return kConvCudnn;
    return fits_gemm(c) ? kConvGemm : kConvOwn;
  }
  std::string words() const { return fmt::format("conv2d {} {}", unit_name(unit_of(c.compute)), words_of(c)); }
  std::any operands() const { return c; }
};

}  // namespace

std::span<const std::string_view> conv_ways() { return kNames; }

std::span<const ConvCandidate> conv_candidates(Stream& s, const Conv& c, bool others) {
  thread_local std::vector<ConvCandidate> found;
  found.clear();
  for (int id = 0; id < (others ? kCandidates : kConvCudnnNext); ++id)
    if (fits(s, c, id)) found.push_back({id, kNames[id]});
  return found;
}

void conv_with(Stream& s, const Conv& c, int candidate) {
  require(candidate >= 0 && candidate < kCandidates, "conv2d",
          "there is no candidate number {}: 0 is own, 1 cudnn, 2 gemm, 3 padded, from {} to {} cudnn's others",
          candidate, kConvCudnnNext, kCandidates - 1);
  require(fits(s, c, candidate), "conv2d",
          "{} has no way to compute this convolution: conv_candidates() says which can", kNames[candidate]);
  if (candidate == kConvOwn) implicit_gemm(s, c);
  else if (candidate == kConvGemm) run_gemm(s, c);
  else if (candidate == kConvPadded) run_padded(s, {&c, 1});
  else run_cudnn(s, c, cudnn_choice(candidate));
}

int conv_choice(Stream& s, const Conv& c) { return choose_way(ConvCall{s, c}); }

void conv(Stream& s, const Conv& c) { conv_with(s, c, conv_choice(s, c)); }

void conv_gradients(Stream& s, const Conv& data, const Conv& weight) {
  const int of_data = conv_choice(s, data), of_weight = conv_choice(s, weight);
  if (of_data == kConvOwn && of_weight == kConvOwn) return implicit_gemm_gradients(s, data, weight);
  const Conv both[] = {data, weight};
  if (of_data == kConvPadded && of_weight == kConvPadded && run_padded(s, both)) return;
  conv_with(s, data, of_data), conv_with(s, weight, of_weight);
}

}  // namespace hpcdl::cuda
