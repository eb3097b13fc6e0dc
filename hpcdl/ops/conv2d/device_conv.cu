#include "hpcdl/ops/conv2d/device_conv.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "hpcdl/ops/conv2d/cudnn_conv.h"
#include "hpcdl/ops/conv2d/own_conv.h"
#include "hpcdl/ops/matmul/device_gemm.h"

namespace hpcdl::cuda {
namespace {

constexpr std::string_view kNames[] = {"own", "cudnn", "gemm"};

std::atomic<ConvChooser> the_chooser = nullptr;

/// What HPCDL_CONV asks for, or -1.
int asked_for() {
  static const int wish = [] {
    const char* text = std::getenv("HPCDL_CONV");
    if (!text) return -1;
    for (const int id : {kConvOwn, kConvCudnn, kConvGemm})
      if (kNames[id] == text) return id;
    std::fprintf(stderr, "[conv2d] HPCDL_CONV=%s is none of own, cudnn, gemm; choosing by shape\n", text);
    return -1;
  }();
  return wish;
}

/// Too little work for a library's launch to pay.
bool tiny(const Conv& c) { return c.shape.flops() < 1 << 27; }

/// A kernel of one pixel that reads every pixel: rows of x times w.
bool fits_gemm(const Conv& c) {
  const auto& s = c.shape;
  return s.kh == 1 && s.kw == 1 && s.stride == 1 && s.pad == 0;
}

void run_gemm(Stream& s, const Conv& c) {
  const auto& g = c.shape;
  const auto operand = [](const ConvOperand& o, std::int64_t ld, bool transposed) { return GemmOperand{o.data, o.dtype, ld, transposed}; };
  Gemm p{.compute = c.compute, .a = {}, .b = {}, .out = {.d = c.out, .dtype = c.out_dtype, .accumulate = c.accumulate, .bias = c.bias.data, .bias_dtype = c.bias.dtype}};
  switch (c.pass) {
    case ConvPass::forward: p.m = g.pixels(), p.n = g.o, p.k = g.i, p.a = operand(c.x, g.i, false), p.b = operand(c.w, g.i, true); break;
    case ConvPass::data: p.m = g.pixels(), p.n = g.i, p.k = g.o, p.a = operand(c.dy, g.o, false), p.b = operand(c.w, g.i, false); break;
    case ConvPass::weight: p.m = g.o, p.n = g.i, p.k = g.pixels(), p.a = operand(c.dy, g.o, true), p.b = operand(c.x, g.i, false); break;
  }
  p.out.ld = p.n;
  gemm(s, p);
}

bool fits(Stream& s, const Conv& c, int candidate) {
  return candidate == kConvOwn || (candidate == kConvCudnn && fits_cudnn(s, c)) || (candidate == kConvGemm && fits_gemm(c));
}

}  // namespace

std::span<const ConvCandidate> conv_candidates(Stream& s, const Conv& c) {
  thread_local std::vector<ConvCandidate> found;
  found.clear();
  for (const int id : {kConvOwn, kConvCudnn, kConvGemm})
    if (fits(s, c, id)) found.push_back({id, kNames[id]});
  return found;
}

void conv_with(Stream& s, const Conv& c, int candidate) {
  require(candidate >= kConvOwn && candidate <= kConvGemm, "conv2d", "there is no candidate number {}: 0 is own, 1 cudnn, 2 gemm", candidate);
  require(fits(s, c, candidate), "conv2d", "{} has no way to compute this convolution: conv_candidates() says which can", kNames[candidate]);
  if (candidate == kConvOwn) own_conv(s, c);
  else if (candidate == kConvCudnn) run_cudnn(s, c);
  else run_gemm(s, c);
}

int conv_choice(Stream& s, const Conv& c) {
  int id = asked_for();
  if (const ConvChooser chooser = the_chooser.load(std::memory_order_relaxed); id < 0 && chooser) id = chooser(s, c);
  // Of cuDNN's engines those that neither transform nor round f32 operands run at a tenth of the speed of ours and less, backward; and those for
  // three channels at three quarters.
  const bool ours = tiny(c) || c.compute == DType::f32 || (c.pass == ConvPass::forward && c.shape.i % 8 != 0);
  if (id < 0) id = fits_gemm(c) ? kConvGemm : ours ? kConvOwn : kConvCudnn;
  return fits(s, c, id) ? id : kConvOwn;
}

void set_conv_chooser(ConvChooser chooser) { the_chooser = chooser; }

void conv(Stream& s, const Conv& c) { conv_with(s, c, conv_choice(s, c)); }

void conv_gradients(Stream& s, const Conv& data, const Conv& weight) {
  const int of_data = conv_choice(s, data), of_weight = conv_choice(s, weight);
  if (of_data == kConvOwn && of_weight == kConvOwn) return own_gradients(s, data, weight);
  conv_with(s, data, of_data), conv_with(s, weight, of_weight);
}

}  // namespace hpcdl::cuda
