#pragma once
// The three products of a convolution on a GPU: y, dx and dw, by our own kernels, by cuDNN, or, of single pixels, as
// plain products. Sums are f32; their order depends on the shape and the GPU alone. 16-bit products may read a f32
// weight, rounded on its way, and write f32 gradients.

#include <span>
#include <string_view>

#include "hpcdl/ops/conv2d/conv2d.h"

namespace hpcdl::cuda {

enum class ConvPass : unsigned char { forward, data, weight };

struct ConvOperand {
  const void* data = nullptr;
  DType dtype = DType::f32;
};

/// One of the products, operands contiguous: forward y = x * w + bias, data dx = dy * w transposed, weight dw = dy
/// correlated with x.
struct Conv {
  ConvPass pass = ConvPass::forward;
  Conv2dShape shape;
  DType compute = DType::f32;  // of x and dy, and of the products
  ConvOperand x, w, dy, bias;  // those that the pass reads
  void* out = nullptr;         // y, dx or dw
  DType out_dtype = DType::f32;
  bool accumulate = false;
};

/// By the fastest way known: what HPCDL_CONV=own, =cudnn or =gemm asks for, where it can, else set_conv_chooser()'s,
/// else one picked from the shape.
void conv(Stream& s, const Conv& c);
/// The passes data and weight of one convolution: the same, where both go the same way with what they share brought
/// once.
void conv_gradients(Stream& s, const Conv& data, const Conv& weight);

struct ConvCandidate {
  int id;
  std::string_view name;
};
/// cuDNN's first choice; from kConvCudnnNext on its others, which are for tuning.
inline constexpr int kConvOwn = 0, kConvCudnn = 1, kConvGemm = 2, kConvCudnnNext = 3;

/// The ways that can compute c on the stream's GPU, without or with cuDNN's other choices, whose plans take a while to
/// make. Each repeats its bits. Valid until the calling thread's next call.
std::span<const ConvCandidate> conv_candidates(Stream& s, const Conv& c, bool others = false);
/// One of them.
void conv_with(Stream& s, const Conv& c, int candidate);
/// The one that conv() takes.
int conv_choice(Stream& s, const Conv& c);

/// Asked by conv(): the id of a candidate, or -1 for the choice built in. Not to be changed while another thread
/// launches.
using ConvChooser = int (*)(Stream& s, const Conv& c);
void set_conv_chooser(ConvChooser chooser);

}  // namespace hpcdl::cuda
