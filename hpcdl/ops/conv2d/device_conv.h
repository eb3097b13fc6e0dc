#pragma once
// The three products of a convolution on a GPU (y, dx and dw) by our own kernels, by cuDNN, for 1 x 1 kernels as plain
// products, or, for odd numbers of channels of 16 bits, by another of these on padded copies. Sums are f32; their order depends only on the shape and the GPU. 16-bit products may read an f32
// weight, rounded when read, and write f32 gradients.

#include <array>
#include <cstdint>
#include <span>
#include <string>
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
  DType compute = DType::f32;  // type of x and dy, and of the products
  ConvOperand x, w, dy, bias;  // the ones that the pass reads
  void* out = nullptr;         // y, dx or dw
  DType out_dtype = DType::f32;
  bool accumulate = false;
};

/// The properties of a convolution that determine its ways: those of its key, under "conv2d" (core/ways.h).
std::array<std::int64_t, 14> fields_of(const Conv& c);
/// Pass and sizes, for people.
std::string words_of(const Conv& c);

/// Uses the way that the stream's table says for this convolution, else the fastest known one for its shape.
void conv(Stream& s, const Conv& c);
/// The data and weight passes of one convolution; if both use the same way, operands that they share are loaded or
/// copied once.
void conv_gradients(Stream& s, const Conv& data, const Conv& weight);

struct ConvCandidate {
  int id;
  std::string_view name;
};
/// cuDNN's first choice; its others, for tuning, follow from kConvCudnnNext on.
inline constexpr int kConvOwn = 0, kConvCudnn = 1, kConvGemm = 2, kConvPadded = 3, kConvCudnnNext = 4;

/// The ways that can compute c on the stream's GPU, without or with cuDNN's other choices, whose plans take a while to
/// build. Each is reproducible bit for bit. Valid until the calling thread's next call.
std::span<const ConvCandidate> conv_candidates(Stream& s, const Conv& c, bool others = false);
/// Runs one of them.
void conv_with(Stream& s, const Conv& c, int candidate);
/// The candidate that conv() uses.
int conv_choice(Stream& s, const Conv& c);
/// The names of all ways, by id.
std::span<const std::string_view> conv_ways();

}  // namespace hpcdl::cuda
