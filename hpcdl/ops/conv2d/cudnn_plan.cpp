#if HPCDL_CUDNN

#include "hpcdl/ops/conv2d/cudnn_plan.h"

#include <cstdint>

namespace hpcdl::cuda::cudnn {
namespace {

/// `dims` in cuDNN's order (N, C, H, W), stored as (N, H, W, C). Virtual: an intermediate between two operations,
/// without memory.
Descriptor tensor(Id id, DType type, const std::vector<std::int64_t>& dims, bool is_virtual = false) {
  Descriptor t(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const std::int64_t c = dims[1], row = dims[3] * c;
  t.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, std::int64_t{id});
  t.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type_of(type));
  t.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, std::int64_t{16});
  t.set(CUDNN_ATTR_TENSOR_DIMENSIONS, dims);
  t.set(CUDNN_ATTR_TENSOR_STRIDES, {dims[2] * row, 1, row, c});
  t.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual);
  t.finalize();
  return t;
}

Descriptor convolution(const Conv2dShape& c) {
  Descriptor d(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  d.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  d.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, CUDNN_CROSS_CORRELATION);
  d.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, std::int64_t{2});
  d.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, {c.pad, c.pad});
  d.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, {c.pad, c.pad});
  d.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, {c.stride, c.stride});
  d.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, {c.dilation, c.dilation});
  d.finalize();
  return d;
}

Descriptor images(Id id, DType type, const Conv2dShape& c) { return tensor(id, type, {c.n, c.i, c.h, c.w}); }
Descriptor results(Id id, DType type, const Conv2dShape& c, bool is_virtual = false) {
  return tensor(id, type, {c.n, c.o, c.oh, c.ow}, is_virtual);
}
Descriptor filters(Id id, DType type, const Conv2dShape& c) { return tensor(id, type, {c.o, c.i, c.kh, c.kw}); }

struct Names {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t conv, alpha, beta, x, w, y;
};
constexpr Names kForward{CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y};
constexpr Names kData{CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY};
constexpr Names kWeight{CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY};

Descriptor product(const Names& n, const Conv& c, const Descriptor& x, const Descriptor& w, const Descriptor& y) {
  Descriptor op(n.type);
  op.set(n.conv, convolution(c.shape));
  op.set(n.x, x), op.set(n.w, w), op.set(n.y, y);
  op.set(n.alpha, CUDNN_TYPE_FLOAT, 1.0f);
  op.set(n.beta, CUDNN_TYPE_FLOAT, c.accumulate ? 1.0f : 0.0f);
  op.finalize();
  return op;
}

/// out = sums + bias, in f32.
Descriptor bias_added(const Conv& c, const Descriptor& sums) {
  const Descriptor bias = tensor(kBias, c.bias.dtype, {1, c.shape.o, 1, 1});
  return pointwise(CUDNN_POINTWISE_ADD, results(kOut, c.out_dtype, c.shape), sums, &bias);
}

std::vector<Descriptor> operations(const Conv& c) {
  const auto& s = c.shape;
  std::vector<Descriptor> ops;
  if (c.pass == ConvPass::data) {
    ops.push_back(
        product(kData, c, images(kOut, c.out_dtype, s), filters(kW, c.w.dtype, s), results(kDy, c.dy.dtype, s)));
  } else if (c.pass == ConvPass::weight) {
    ops.push_back(
        product(kWeight, c, images(kX, c.x.dtype, s), filters(kOut, c.out_dtype, s), results(kDy, c.dy.dtype, s)));
  } else {
    const Descriptor y = c.bias.data ? results(kSums, DType::f32, s, true) : results(kOut, c.out_dtype, s);
    ops.push_back(product(kForward, c, images(kX, c.x.dtype, s), filters(kW, c.w.dtype, s), y));
    if (c.bias.data) ops.push_back(bias_added(c, y));
  }
  return ops;
}

/// Rejects engines that would break a promise: results that differ between runs, sums or operands of lower precision,
/// larger errors than those of a plain sum. Also rejects engines that do not use tensor cores for 16-bit operands: the
/// library's first choice for a 1 x 1 kernel takes ten times as long, and its choice for three channels when the others
/// need more workspace than is available takes forty times as long; ours take neither.
bool keeps_promises(std::span<const cudnnBackendNumericalNote_t> notes, const Conv& c) {
  bool tensor_cores = false;
  for (const auto note : notes) {
    if (note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE) tensor_cores = true;
    else if (note != CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP) return false;
  }
  return tensor_cores == (c.compute != DType::f32);  // they would round f32 to TF32
}

}  // namespace

bool expressible(const Conv& c) {
  const auto plain = [&](const ConvOperand& o) {
    return !o.data || (o.dtype == c.compute && reinterpret_cast<std::uintptr_t>(o.data) % 16 == 0);
  };
  const bool reads = c.pass == ConvPass::forward ? plain(c.x) && plain(c.w) && plain(c.bias)
                                                 : plain(c.dy) && plain(c.pass == ConvPass::data ? c.w : c.x);
  // 9.19 has no engine for an f32 bias or an f32 result with 16-bit images.
  return c.shape.pixels() > 0 && reads && c.out_dtype == c.compute && reinterpret_cast<std::uintptr_t>(c.out) % 16 == 0;
}

std::vector<Plan> plans_of(const Conv& c, const Target& target, std::int64_t most, int count) {
  return plans_of(operations(c), target, most, count,
                  [&](std::span<const cudnnBackendNumericalNote_t> notes) { return keeps_promises(notes, c); });
}

}  // namespace hpcdl::cuda::cudnn

#endif
