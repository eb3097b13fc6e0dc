// cuDNN's operation graphs, choices and plans for an H200, which need not be present: the library plans for a GPU whose
// properties it is told. Nothing runs.

#if HPCDL_CUDA && __has_include(<cudnn_graph.h>)

#include "hpcdl/ops/conv2d/cudnn_plan.h"

#include <gtest/gtest.h>

#include <string_view>

#if CUDNN_VERSION >= 90800

namespace hpcdl::cuda {
namespace {

constexpr std::string_view kH200 =
    R"({"deviceName": "NVIDIA H200", "cudaDeviceId": 0, "deviceVer": 900, "multiProcessorCount": 132, "driverVer": 13000, "maxSharedMemoryPerBlock": 49152,
 "maxSharedMemoryPerBlockOptin": 232448, "reservedSharedMemoryPerBlock": 1024, "totalGlobalMem": 150754820096, "maxGridSize": [2147483647, 65535, 65535],
 "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536, "maxRegistersPerSM": 65536, "smClockRateKHz": 1980000, "memClockRateKHz": 3201000,
 "l2CacheSize": 62914560, "warpSize": 32, "maxCtasPerSM": 32, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0,
 "supportCoopLaunch": 1, "cudnnVersion": 91900, "schemaVersion": 1})";

constexpr std::int64_t kMost = std::int64_t{48} << 20;

Conv convolution(ConvPass pass, DType type, Shape x, Shape w, Conv2d::Args a) {
  auto* somewhere = reinterpret_cast<void*>(std::uintptr_t{4096});  // never read
  Conv c{.pass = pass,
         .shape = Conv2d::shape({x, type}, {w, type}, a),
         .compute = type,
         .x = {somewhere, type},
         .w = {somewhere, type},
         .dy = {somewhere, type},
         .bias = {},
         .out = somewhere,
         .out_dtype = type};
  if (pass == ConvPass::forward) c.bias = {somewhere, type};
  return c;
}

class CudnnPlan : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cudnn::Library::get().whole) GTEST_SKIP() << "no cuDNN";
    device.emplace(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    device->set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, static_cast<std::int64_t>(kH200.size()),
                kH200.data());
    if (!device->try_finalize()) GTEST_SKIP() << "this cuDNN cannot plan for a GPU that is not present";
  }
  bool plans(const Conv& c) {
    return cudnn::expressible(c) && !cudnn::plans_of(c, {.device = &*device}, kMost, 1).empty();
  }
  std::optional<cudnn::Descriptor> device;
};

TEST_F(CudnnPlan, LayersOfResNetHavePlansThatRepeatTheirBits) {
  struct Layer {
    Shape x, w;
    Conv2d::Args a;
  };
  const Layer layers[] = {{{128, 56, 56, 64}, {64, 3, 3, 64}, {.pad = 1}},
                          {{128, 56, 56, 64}, {128, 3, 3, 64}, {.stride = 2, .pad = 1}},
                          {{128, 56, 56, 64}, {128, 1, 1, 64}, {.stride = 2}},
                          {{128, 7, 7, 512}, {512, 3, 3, 512}, {.pad = 1}}};
  for (const auto& layer : layers)
    for (const DType type : {DType::bf16, DType::f16, DType::f32})
      for (const ConvPass pass : {ConvPass::forward, ConvPass::data, ConvPass::weight})
        EXPECT_TRUE(plans(convolution(pass, type, layer.x, layer.w, layer.a)))
            << dtype_name(type) << " pass " << static_cast<int>(pass) << ", " << layer.x[3] << " channels";
}

TEST_F(CudnnPlan, GradientsCanBeAddedToWhatIsThere) {
  for (const ConvPass pass : {ConvPass::data, ConvPass::weight})
    for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
      Conv c = convolution(pass, type, {32, 14, 14, 64}, {64, 3, 3, 64}, {.pad = 1});
      c.accumulate = true;
      EXPECT_TRUE(plans(c)) << dtype_name(type) << " pass " << static_cast<int>(pass);
    }
}

TEST_F(CudnnPlan, MoreOfItsChoicesBeginWithTheFirst) {
  const Conv c = convolution(ConvPass::forward, DType::bf16, {256, 28, 28, 128}, {128, 3, 3, 128}, {.pad = 1});
  const auto one = cudnn::plans_of(c, {.device = &*device}, kMost, 1),
             some = cudnn::plans_of(c, {.device = &*device}, kMost, 4);
  ASSERT_EQ(one.size(), 1u);
  ASSERT_EQ(some.size(), 4u);
  EXPECT_EQ(one[0].workspace, some[0].workspace);
}

TEST_F(CudnnPlan, OfThreeChannelsItHasNothingWithoutMuchWorkspace) {
  EXPECT_FALSE(
      plans(convolution(ConvPass::data, DType::bf16, {256, 224, 224, 3}, {64, 7, 7, 3}, {.stride = 2, .pad = 3})));
}

TEST_F(CudnnPlan, WhatItCannotTakeIsSaidBefore) {
  const auto good = [] {
    return convolution(ConvPass::forward, DType::bf16, {32, 14, 14, 64}, {64, 3, 3, 64}, {.pad = 1});
  };
  EXPECT_TRUE(cudnn::expressible(good()));
  Conv c = good();
  c.x.data = static_cast<const std::byte*>(c.x.data) + 2;
  EXPECT_FALSE(cudnn::expressible(c)) << "an address that is not a multiple of 16 is not supported";
  c = good();
  c.bias.dtype = DType::f32;
  EXPECT_FALSE(cudnn::expressible(c)) << "a bias of another type is not supported";
  c = good();
  c.w.dtype = DType::f32;
  EXPECT_FALSE(cudnn::expressible(c)) << "a weight of another type is not supported";
  c = convolution(ConvPass::weight, DType::bf16, {32, 14, 14, 64}, {64, 3, 3, 64}, {.pad = 1});
  c.out_dtype = DType::f32;
  EXPECT_FALSE(cudnn::expressible(c)) << "a gradient of another type is not supported";
  EXPECT_FALSE(
      cudnn::expressible(convolution(ConvPass::weight, DType::bf16, {0, 14, 14, 64}, {64, 3, 3, 64}, {.pad = 1})))
      << "no images";
}

}  // namespace
}  // namespace hpcdl::cuda

#endif
#endif
