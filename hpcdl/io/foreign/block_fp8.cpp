// Matrices in F8_E4M3 with one scale for each block of rows and columns.

#include "hpcdl/core/f8.h"
#include "hpcdl/io/foreign/expect.h"
#include "hpcdl/io/foreign/packed_matrix.h"

namespace hpcdl::io {

std::optional<PackedMatrix> find_block_fp8(const PackConfig& config, const TensorFolder& files,
                                           const std::string& stem) {
  const auto found = files.find(stem + "weight");
  if (!found || found->dtype() != DType::f8_e4m3) return std::nullopt;
  const View& codes = *found;
  require(codes.rank() == 2, "io", "{}: {}weight: expected a matrix, found {}", files.path().string(), stem,
          to_string(codes.spec()));
  const auto height = config.block_rows, width = config.block_columns;
  const auto across = (codes[1] + width - 1) / width;
  const View scales =
      expect_tensor(files, stem + "weight_scale_inv", {{(codes[0] + height - 1) / height, across}, DType::f32});
  std::optional<PackedParts> parts;
  const Spec held{codes.shape(), DType::u8};
  const auto wanted = quant_parts(QuantFormat::fp8_blocks, codes[0], codes[1]);
  if (height == 128 && width == 128 && codes[1] % quant_format_info(QuantFormat::fp8_blocks).block == 0 &&
      wanted.scale == scales.spec())
    parts = PackedParts{.format = QuantFormat::fp8_blocks,
                        .parts = {.codes = View(codes.data(), held), .scale = scales, .outer = {}, .table = {}}};
  return PackedMatrix{.rows = codes[0],
                      .columns = codes[1],
                      .dtype = config.dtype,
                      .decode =
                          [=](std::int64_t begin, std::int64_t end, float* out) {
                            const Elements<f8_e4m3> q(codes);
                            const Elements<float> s(scales);
                            for (auto r = begin; r < end; ++r)
                              for (std::int64_t c = 0; c < codes[1]; ++c)
                                *out++ = from_f8(q[r * codes[1] + c]) * s[r / height * across + c / width];
                          },
                      .parts = std::move(parts)};
}

}  // namespace hpcdl::io
