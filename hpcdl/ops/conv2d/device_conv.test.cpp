// Every way to compute a convolution on a GPU, forced in turn, against loops in double.

#include "hpcdl/ops/conv2d/device_conv.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "hpcdl/buffer.h"
#include "hpcdl/core/error.h"
#include "hpcdl/core/tolerance.h"
#include "hpcdl/core/ways.h"
#include "hpcdl/rng.h"

#if HPCDL_CUDA

namespace hpcdl::cuda {
namespace {

float get(const void* p, DType d, std::int64_t i) {
  if (d == DType::f32) return static_cast<const float*>(p)[i];
  return d == DType::bf16 ? static_cast<float>(static_cast<const bf16*>(p)[i])
                          : static_cast<float>(static_cast<const f16*>(p)[i]);
}
void put(void* p, DType d, std::int64_t i, float v) {
  if (d == DType::f32) static_cast<float*>(p)[i] = v;
  else if (d == DType::bf16) static_cast<bf16*>(p)[i] = bf16(v);
  else static_cast<f16*>(p)[i] = f16(v);
}

/// Random numbers on the host and the device.
struct Both {
  OwnedTensor host, device;
  Both() = default;
  Both(Stream& s, std::int64_t n, DType d, std::uint64_t seed) : host({{n}, d}), device({{n}, d}, s.device()) {
    for (std::int64_t i = 0; i < n; ++i)
      put(host.tensor.data(), d, i, static_cast<float>(Rng{seed, 0}.normal(static_cast<std::uint64_t>(i))));
    copy(s, device.tensor, host.tensor);
  }
  DType dtype() const { return host.tensor.dtype(); }
  double operator[](std::int64_t i) const { return static_cast<double>(get(host.tensor.data(), dtype(), i)); }
  ConvOperand operand() const { return {device.tensor.data(), dtype()}; }
};

bool may_be_cudnn(int id) { return id != kConvOwn && id != kConvGemm; }

struct Case {
  Conv conv;
  Both x, w, dy, bias, out;  // out: its previous contents
  std::vector<double> want, magnitude;
  double terms = 1;

  Case(Stream& s, const Conv2dShape& c, ConvPass pass, DType type, DType parameters, bool accumulate, bool has_bias)
      : x(s, c.n * c.h * c.w * c.i, type, 1), w(s, c.o * c.k(), parameters, 2), dy(s, c.pixels() * c.o, type, 3) {
    const std::int64_t sizes[] = {c.pixels() * c.o, c.n * c.h * c.w * c.i, c.o * c.k()};
    const auto size = sizes[static_cast<int>(pass)];
    out = Both(s, size, pass == ConvPass::weight ? parameters : type, 4);
    if (has_bias) bias = Both(s, c.o, parameters, 5);
    conv = {.pass = pass,
            .shape = c,
            .compute = type,
            .x = x.operand(),
            .w = w.operand(),
            .dy = dy.operand(),
            .bias = {},
            .out = out.device.tensor.data(),
            .out_dtype = out.dtype(),
            .accumulate = accumulate};
    if (has_bias) conv.bias = bias.operand();
    want.assign(static_cast<std::size_t>(size), 0), magnitude = want;
    const std::int64_t lengths[] = {c.k(), c.taps() * c.o, c.pixels()};
    terms = static_cast<double>(lengths[static_cast<int>(pass)]);
    products();
    for (std::int64_t i = 0; i < size; ++i) {
      const double more = (has_bias ? bias[i % c.o] : 0) + (accumulate ? out[i] : 0);
      want[static_cast<std::size_t>(i)] += more, magnitude[static_cast<std::size_t>(i)] += std::abs(more) + 1;
    }
  }

  void products() {
    const auto& c = conv.shape;
    for (std::int64_t n = 0; n < c.n; ++n)
      for (std::int64_t p = 0; p < c.oh; ++p)
        for (std::int64_t q = 0; q < c.ow; ++q)
          for (std::int64_t r = 0; r < c.kh; ++r)
            for (std::int64_t t = 0; t < c.kw; ++t) {
              const auto row = p * c.stride - c.pad + r * c.dilation, col = q * c.stride - c.pad + t * c.dilation;
              if (row < 0 || row >= c.h || col < 0 || col >= c.w) continue;
              for (std::int64_t o = 0; o < c.o; ++o)
                for (std::int64_t i = 0; i < c.i; ++i)
                  one(((n * c.h + row) * c.w + col) * c.i + i, ((o * c.kh + r) * c.kw + t) * c.i + i,
                      ((n * c.oh + p) * c.ow + q) * c.o + o);
            }
  }
  void one(std::int64_t ix, std::int64_t iw, std::int64_t iy) {
    const auto rounded = [&](std::int64_t i) {
      return conv.compute == DType::bf16 ? static_cast<double>(static_cast<float>(bf16(static_cast<float>(w[i]))))
                                         : w[i];
    };
    const double v = conv.pass == ConvPass::forward ? x[ix] * rounded(iw)
                     : conv.pass == ConvPass::data  ? dy[iy] * rounded(iw)
                                                    : dy[iy] * x[ix];
    const auto at = static_cast<std::size_t>(conv.pass == ConvPass::forward ? iy
                                             : conv.pass == ConvPass::data  ? ix
                                                                            : iw);
    want[at] += v, magnitude[at] += std::abs(v);
  }

  OwnedTensor run(Stream& s, const std::function<void()>& way) {
    copy(s, out.device.tensor, out.host.tensor);
    way();
    OwnedTensor t(out.host.tensor.spec());
    copy(s, t.tensor, out.device.tensor);
    return t;
  }
  void verify(Stream& s, int id) {
    const auto way = [&] { conv_with(s, conv, id); };
    const OwnedTensor first = run(s, way), second = run(s, way);
    EXPECT_EQ(0, std::memcmp(first.tensor.data(), second.tensor.data(), static_cast<std::size_t>(first.tensor.bytes())))
        << "two runs differ";
    compare(first, id);
  }
  void compare(const OwnedTensor& first, int id) {
    int wrong = 0;
    for (std::size_t i = 0; i < want.size() && wrong < 3; ++i) {
      const double v = static_cast<double>(get(first.tensor.data(), out.dtype(), static_cast<std::int64_t>(i)));
      // cuDNN may round a 16-bit product before it adds it to the previous contents.
      const double before = conv.accumulate && may_be_cudnn(id) && out.dtype() != DType::f32
                                ? half_ulp(out.dtype()) * std::abs(want[i] - out[static_cast<std::int64_t>(i)])
                                : 0;
      const double allowed = allowed_error(out.dtype(), std::abs(want[i]), terms, magnitude[i]) + before;
      if (!(std::abs(v - want[i]) <= allowed))
        ADD_FAILURE() << "[" << i << "]: expected " << want[i] << ", got " << v << ", allowed " << allowed, ++wrong;
    }
  }
};

Conv2dShape shape_of(Shape x, Shape w, Conv2d::Args a) { return Conv2d::shape({x, DType::f32}, {w, DType::f32}, a); }

const Conv2dShape kShapes[] = {
    shape_of({4, 14, 14, 64}, {64, 3, 3, 64}, {.pad = 1}),
    shape_of({2, 15, 13, 64}, {136, 3, 3, 64}, {.stride = 2, .pad = 1}),
    shape_of({3, 12, 12, 72}, {40, 1, 1, 72}, {.stride = 2}),
    shape_of({2, 21, 20, 3}, {64, 7, 7, 3}, {.stride = 2, .pad = 3}),
    shape_of({2, 9, 10, 16}, {24, 3, 2, 16}, {.stride = 3, .pad = 2, .dilation = 2}),
    shape_of({1, 7, 9, 5}, {7, 3, 3, 5}, {.pad = 2, .dilation = 2}),
    shape_of({8, 8, 8, 128}, {256, 3, 3, 128}, {.pad = 1}),
    shape_of({4, 11, 13, 64}, {72, 1, 1, 64}, {}),
    shape_of({3, 9, 9, 6}, {5, 1, 1, 6}, {}),
    shape_of({3, 18, 17, 100}, {68, 3, 3, 100}, {.pad = 1}),  // partial blocks of channels
    shape_of({5, 13, 15, 68}, {196, 3, 3, 68}, {.stride = 2, .pad = 1, .dilation = 2}),
    shape_of({9, 6, 5, 128}, {64, 2, 3, 128}, {.pad = 1}),
    shape_of({3, 20, 24, 3}, {64, 3, 3, 3}, {.pad = 1}),  // few channels: windows that begin with an odd element
    shape_of({2, 17, 18, 4}, {72, 3, 3, 4}, {.stride = 2, .pad = 1}),
    shape_of({1, 9, 11, 1}, {16, 5, 5, 1}, {.pad = 2}),
    shape_of({1, 41, 70, 3}, {48, 7, 7, 3}, {.stride = 2, .pad = 3}),
    shape_of({2, 30, 9, 2}, {24, 1, 3, 2}, {.stride = 2}),
    shape_of({3, 40, 41, 3}, {37, 3, 3, 3}, {.pad = 1}),  // few channels and an odd number of filters
    shape_of({1, 29, 30, 2}, {16, 7, 7, 2}, {.pad = 3}),
    shape_of({2, 21, 22, 7}, {32, 3, 3, 7}, {.stride = 2, .pad = 1}),
    shape_of({2, 39, 40, 3}, {41, 7, 7, 3}, {.stride = 2, .pad = 3}),
    shape_of({2, 23, 25, 19}, {45, 3, 3, 19}, {.stride = 2, .pad = 1}),  // two odd numbers of channels
    shape_of({2, 14, 15, 63}, {61, 2, 2, 63}, {}),                       // whose taps begin with odd elements
    shape_of({2, 24, 24, 24}, {51, 3, 3, 24}, {.stride = 2, .pad = 1}),
    shape_of({3, 40, 40, 16}, {85, 3, 3, 16}, {.stride = 2, .pad = 1}),  // dx in parts
    shape_of({1, 8, 113, 3}, {45, 5, 5, 3}, {.pad = 2}),  // the boxes of dy that waste least do not fit as f32
};

bool has(Stream& s, const Conv& c, int id) {
  for (const auto& way : conv_candidates(s, c))
    if (way.id == id) return true;
  return false;
}

class DeviceConv : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  }
  const Conv2dShape& shape() const { return kShapes[GetParam()]; }
  Pool pool{1};
};

TEST_P(DeviceConv, EveryCandidateIsRight) {
  Stream s(Device::cuda(), pool);
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    for (const ConvPass pass : {ConvPass::forward, ConvPass::data, ConvPass::weight})
      for (const bool more : {false, true}) {  // accumulation and a bias
        Case c(s, shape(), pass, type, type, more && pass != ConvPass::forward, more && pass == ConvPass::forward);
        for (const auto& way : conv_candidates(s, c.conv, GetParam() == 0 && type == DType::bf16 && !more)) {
          SCOPED_TRACE(fmt::format("{} pass {} {} {}", dtype_name(type), static_cast<int>(pass), way.name, more));
          c.verify(s, way.id);
        }
      }
}

TEST_P(DeviceConv, BothGradientsTogether) {
  Stream s(Device::cuda(), pool);
  for (const DType type : {DType::f32, DType::bf16})
    for (const bool add : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", dtype_name(type), add));
      Case data(s, shape(), ConvPass::data, type, type, add, false),
          weight(s, shape(), ConvPass::weight, type, type, add, false);
      OwnedTensor dw[2];
      const auto run = [&](int time) {
        return data.run(s, [&] { dw[time] = weight.run(s, [&] { conv_gradients(s, data.conv, weight.conv); }); });
      };
      const OwnedTensor first = run(0), second = run(1);
      EXPECT_EQ(0,
                std::memcmp(first.tensor.data(), second.tensor.data(), static_cast<std::size_t>(first.tensor.bytes())))
          << "two runs differ";
      EXPECT_EQ(0,
                std::memcmp(dw[0].tensor.data(), dw[1].tensor.data(), static_cast<std::size_t>(dw[0].tensor.bytes())))
          << "two runs differ";
      data.compare(first, conv_choice(s, data.conv)), weight.compare(dw[0], conv_choice(s, weight.conv));
    }
}

TEST_P(DeviceConv, MasterWeightsBesideBf16) {
  Stream s(Device::cuda(), pool);
  for (const ConvPass pass : {ConvPass::forward, ConvPass::data, ConvPass::weight}) {
    Case c(s, shape(), pass, DType::bf16, DType::f32, pass == ConvPass::weight, pass == ConvPass::forward);
    for (const auto& way : conv_candidates(s, c.conv)) {
      SCOPED_TRACE(fmt::format("pass {} {}", static_cast<int>(pass), way.name));
      c.verify(s, way.id);
    }
  }
}

TEST_P(DeviceConv, CapturedGivesTheSameBits) {
  for (const ConvPass pass : {ConvPass::forward, ConvPass::data, ConvPass::weight})
    for (const int id : {kConvOwn, kConvCudnn, kConvGemm, kConvPadded}) {
      Stream s(Device::cuda(),
               pool);  // a new shape: its workspace and cuDNN plan are first requested during capture
      Case c(s, shape(), pass, DType::bf16, DType::bf16, false, pass == ConvPass::forward);
      Capture::begin(s);
      const bool fits = has(s, c.conv, id);
      if (fits) conv_with(s, c.conv, id);
      const Capture captured = Capture::end(s);
      if (!fits) continue;
      const auto first = c.run(s, [&] { captured.launch(s); }), second = c.run(s, [&] { conv_with(s, c.conv, id); });
      EXPECT_EQ(0,
                std::memcmp(first.tensor.data(), second.tensor.data(), static_cast<std::size_t>(first.tensor.bytes())))
          << "pass " << static_cast<int>(pass) << ", way " << id;
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, DeviceConv, ::testing::Range(0, static_cast<int>(std::size(kShapes))));

TEST(DeviceConvChecks, RefusesWhatIsNone) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  Stream s(Device::cuda(), pool);
  Case c(s, kShapes[0], ConvPass::forward, DType::bf16, DType::bf16, false, false);
  EXPECT_THROW(conv_with(s, c.conv, 99), Error);
  Conv f32_gradient = c.conv;
  f32_gradient.pass = ConvPass::weight, f32_gradient.out_dtype = DType::f32;
  EXPECT_FALSE(has(s, f32_gradient, kConvCudnn));
  EXPECT_THROW(conv_with(s, f32_gradient, kConvCudnn), Error);
  EXPECT_THROW(conv_with(s, c.conv, kConvGemm), Error);
}

TEST(DeviceConvChecks, ImagesOfThreeChannelsArePaddedAsManyAsThereIsRoomFor) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  Stream s(Device::cuda(), pool);
  const auto shape = shape_of({13, 256, 256, 3}, {8, 1, 1, 3}, {});  // 13 MiB with eight channels
  for (const ConvPass pass : {ConvPass::forward, ConvPass::weight}) {
    Case c(s, shape, pass, DType::bf16, DType::f32, pass == ConvPass::weight, pass == ConvPass::forward);
    c.verify(s, kConvOwn);
  }
}

// The copies take more than the 24 MB that are multiplied at a time.
TEST(DeviceConvChecks, OddChannelsArePaddedInBatches) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  Stream s(Device::cuda(), pool);
  const auto shape = shape_of({250, 64, 64, 3}, {41, 3, 3, 3}, {.stride = 2, .pad = 1}),
             pixels = shape_of({300, 64, 64, 9}, {15, 1, 1, 9}, {.stride = 2});
  for (const auto& c : {shape, pixels})
    for (const DType type : {DType::bf16, DType::f32})
      for (const ConvPass pass : {ConvPass::forward, ConvPass::data, ConvPass::weight}) {
        Case of(s, c, pass, type, type, pass != ConvPass::forward, pass == ConvPass::forward);
        for (const int id : {kConvOwn, kConvPadded}) {
          SCOPED_TRACE(fmt::format("{} pass {} {}", dtype_name(type), static_cast<int>(pass), conv_ways()[id]));
          if (has(s, of.conv, id)) of.verify(s, id);
        }
      }
}

// More tiles than the GPU holds blocks; the last tile of an image is partial.
TEST(DeviceConvChecks, ManyTilesOfFewChannels) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  Stream s(Device::cuda(), pool);
  const auto shape = shape_of({300, 19, 22, 3}, {16, 3, 3, 3}, {.pad = 1});
  for (const DType type : {DType::bf16, DType::f32})
    for (const ConvPass pass : {ConvPass::forward, ConvPass::data, ConvPass::weight}) {
      SCOPED_TRACE(fmt::format("{} pass {}", dtype_name(type), static_cast<int>(pass)));
      Case c(s, shape, pass, type, DType::f32, pass == ConvPass::weight, pass == ConvPass::forward);
      c.verify(s, kConvOwn);
    }
}

// Memory next to a window is not read and multiplied by zeros.
TEST(DeviceConvChecks, AnInfinityBesideAWindowOfFewChannelsIsNotRead) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  Stream s(Device::cuda(), pool);
  for (const auto& shape :
       {shape_of({1, 9, 9, 3}, {16, 3, 3, 3}, {}), shape_of({1, 21, 21, 3}, {16, 7, 7, 3}, {.stride = 2, .pad = 3})}) {
    Case c(s, shape, ConvPass::forward, DType::bf16, DType::bf16, false, false);
    const std::int64_t row = shape.h / 2, col = shape.w / 2;
    for (std::int64_t i = 0; i < 3; ++i)
      put(c.x.host.tensor.data(), DType::bf16, (row * shape.w + col) * 3 + i, std::numeric_limits<float>::infinity());
    copy(s, c.x.device.tensor, c.x.host.tensor);
    const OwnedTensor y = c.run(s, [&] { conv_with(s, c.conv, kConvOwn); });
    for (std::int64_t p = 0; p < shape.oh; ++p)
      for (std::int64_t q = 0; q < shape.ow; ++q) {
        const std::int64_t r = row - p * shape.stride + shape.pad, t = col - q * shape.stride + shape.pad;
        const bool read = r >= 0 && r < shape.kh && t >= 0 && t < shape.kw;
        EXPECT_EQ(std::isfinite(get(y.tensor.data(), DType::bf16, (p * shape.ow + q) * shape.o)), !read)
            << p << ", " << q;
      }
  }
}

// Their operands in parts take 63 MB, but the workspace holds two thirds of that.
TEST(DeviceConvChecks, F32ImagesAreWrittenInPartsAsManyAsThereIsRoomFor) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  Stream s(Device::cuda(), pool);
  const auto shape = shape_of({40, 64, 64, 64}, {64, 1, 1, 64}, {.stride = 2});
  for (const ConvPass pass : {ConvPass::forward, ConvPass::data, ConvPass::weight}) {
    Case c(s, shape, pass, DType::f32, DType::f32, pass == ConvPass::weight, pass == ConvPass::forward);
    c.verify(s, kConvOwn);
  }
}

// All bits of a number count, even where its leading bits cancel; and the largest number, whose leading bits would
// round up to infinity, stays finite.
TEST(DeviceConvChecks, F32KeepsAllBitsOfItsOperands) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  Stream s(Device::cuda(), pool);
  const auto shape = shape_of({8, 16, 16, 64}, {64, 3, 3, 64}, {.pad = 1});
  Case c(s, shape, ConvPass::forward, DType::f32, DType::f32, false, false);
  const auto set = [&](Both& b, auto&& of) {
    for (std::int64_t i = 0; i < b.host.tensor.size(); ++i) put(b.host.tensor.data(), DType::f32, i, of(i));
    copy(s, b.device.tensor, b.host.tensor);
  };
  const auto result = [&](std::int64_t i) {
    return get(c.run(s, [&] { conv_with(s, c.conv, kConvOwn); }).tensor.data(), DType::f32, i);
  };
  const float v = 1.0f + 0x1p-11f + 0x1p-23f;
  const std::int64_t centre = 4 * 64;  // of w: channel 0 of tap (1, 1) of filter 0
  set(c.w, [&](std::int64_t i) { return i == centre ? 1.0f : i == centre + 1 ? -1.0f : 0.0f; });
  set(c.x, [&](std::int64_t i) { return i % 64 == 0 ? v : 1.0f; });
  EXPECT_NEAR(result(0), v - 1.0f, 0x1p-22f);
  const float most = std::numeric_limits<float>::max();
  set(c.w, [&](std::int64_t i) { return i == centre ? 1.0f : 0.0f; });
  set(c.x, [&](std::int64_t) { return most; });
  EXPECT_EQ(result(0), most);
}

TEST(DeviceConvChecks, TheTableDecidesOrElseTheShape) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no GPU";
  Pool pool(1);
  Stream s(Device::cuda(), pool);
  Case large(s, shape_of({8, 16, 16, 64}, {64, 3, 3, 64}, {.pad = 1}), ConvPass::forward, DType::bf16, DType::bf16,
             false, false);
  Case small(s, kShapes[5], ConvPass::forward, DType::bf16, DType::bf16, false, false);
  Case pixels(s, kShapes[8], ConvPass::data, DType::bf16, DType::bf16, false, false);
  EXPECT_EQ(conv_choice(s, small.conv), kConvOwn);
  EXPECT_EQ(conv_choice(s, large.conv), has(s, large.conv, kConvCudnn) ? kConvCudnn : kConvOwn);
  EXPECT_EQ(conv_choice(s, pixels.conv), kConvGemm);
  const auto key = [](const Conv& c) {
    const auto fields = fields_of(c);
    return WayKey{"conv2d", {fields.begin(), fields.end()}};
  };
  s.set_ways(std::make_shared<const Ways>(
      WayNames{.calls = {{key(large.conv), "own"}, {key(small.conv), "gemm"}}, .preferred = {}}));
  EXPECT_EQ(conv_choice(s, large.conv), kConvOwn);
  EXPECT_EQ(conv_choice(s, small.conv), kConvOwn) << "a 3 x 3 kernel is no product";
  EXPECT_EQ(conv_choice(s, pixels.conv), kConvGemm) << "the table does not know it";
  s.set_ways(std::make_shared<const Ways>(WayNames{.calls = {}, .preferred = {{"conv2d", "own"}}}));
  for (const auto* c : {&large, &small, &pixels}) EXPECT_EQ(conv_choice(s, c->conv), kConvOwn);
}

}  // namespace
}  // namespace hpcdl::cuda

#endif
