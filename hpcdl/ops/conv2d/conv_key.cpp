#include <fmt/format.h>

#include "hpcdl/ops/conv2d/device_conv.h"

namespace hpcdl::cuda {

std::array<std::int64_t, 14> fields_of(const Conv& c) {
  const auto& s = c.shape;
  const auto wide = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0 ? 1 : 0; };
  const std::int64_t aligned =
      wide(c.x.data) | wide(c.w.data) << 1 | wide(c.dy.data) << 2 | wide(c.bias.data) << 3 | wide(c.out) << 4;
  const auto type = [](DType d) { return static_cast<std::int64_t>(d); };
  const std::int64_t types = type(c.compute) | type(c.w.dtype) << 8 | type(c.out_dtype) << 16 |
                             type(c.bias.data ? c.bias.dtype : DType::none) << 24;
  return {static_cast<std::int64_t>(c.pass),
          types,
          c.accumulate ? 1 : 0,
          aligned,
          s.n,
          s.h,
          s.w,
          s.i,
          s.o,
          s.kh,
          s.kw,
          s.stride,
          s.pad,
          s.dilation};
}

std::string words_of(const Conv& c) {
  const auto& s = c.shape;
  const char* passes[] = {"forward", "data", "weight"};
  std::string text =
      fmt::format("{} {}x{}x{}x{} to {}, {}x{}", passes[static_cast<int>(c.pass)], s.n, s.h, s.w, s.i, s.o, s.kh, s.kw);
  if (s.stride != 1) text += fmt::format(" stride {}", s.stride);
  if (s.dilation != 1) text += fmt::format(" dilation {}", s.dilation);
  if (c.bias.data) text += " +bias";
  if (c.accumulate) text += " adds up";
  return text;
}

}  // namespace hpcdl::cuda
