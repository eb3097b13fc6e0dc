// bitsandbytes: NF4 and FP4, with scales that may be quantised themselves, and LLM.int8.

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <vector>

#include "hpcdl/io/foreign/expect.h"
#include "hpcdl/io/foreign/packed_matrix.h"
#include "hpcdl/ops/quant_linear/four_bit_values.h"

namespace hpcdl::io {
namespace {

/// quant_state: JSON in the bytes of a tensor.
struct QuantState {
  std::int64_t block = 64, rows = 0, columns = 0;
  std::int64_t nested_block = 0;  // 0: scales are not quantised
  double nested_offset = 0;
  DType dtype = DType::bf16;
};

QuantState read_state(const View& v, const std::string& where) {
  const Json json = parse_json({v.ptr<char>(), static_cast<std::size_t>(v.bytes())}, where);
  const JsonObject o(json, where);
  QuantState s{.block = o.need<std::int64_t>("blocksize")};
  const Json* shape = o.find("shape");
  const bool matrix = shape && shape->is_array() && shape->size() == 2 && (*shape)[0].is_number_unsigned() &&
                      (*shape)[1].is_number_unsigned();
  require(matrix, "io", "{}: shape: expected rows and columns, found {}", where, shape ? shown(shape->dump()) : "none");
  s.rows = (*shape)[0].get<std::int64_t>(), s.columns = (*shape)[1].get<std::int64_t>();
  constexpr std::int64_t kMost = 1 << 30;
  require(s.rows >= 0 && s.columns >= 0 && s.rows <= kMost && s.columns <= kMost, "io",
          "{}: shape: expected sizes up to {}, found {} x {}", where, kMost, s.rows, s.columns);
  s.nested_block = o.get_or<std::int64_t>("nested_blocksize", 0);
  s.nested_offset = o.get_or("nested_offset", 0.0);
  for (const auto size : {s.block, o.has("nested_blocksize") ? s.nested_block : 64})
    require(size >= 1 && size <= 1 << 20, "io", "{}: blocksize: expected 1 to {}, found {}", where, 1 << 20, size);
  const auto dtype = o.get_or<std::string>("dtype", "bfloat16");
  s.dtype = dtype == "float32" ? DType::f32 : dtype == "float16" ? DType::f16 : DType::bf16;
  return s;
}

std::int64_t blocks_in(std::int64_t n, std::int64_t size) { return (n + size - 1) / size; }

/// One scale for each block, as bitsandbytes computes it in f32.
std::vector<float> scales_of(const TensorFolder& files, const std::string& weight, const QuantState& s) {
  const auto count = blocks_in(s.rows * s.columns, s.block);
  std::vector<float> scales(static_cast<std::size_t>(count));
  const auto name = weight + ".absmax";
  if (s.nested_block == 0) {
    const Elements<float> plain(expect_tensor(files, name, {{count}, DType::f32}));
    for (std::int64_t i = 0; i < count; ++i) scales[static_cast<std::size_t>(i)] = plain[i];
    return scales;
  }
  const Elements<std::uint8_t> codes(expect_tensor(files, name, {{count}, DType::u8}));
  const Elements<float> outer(
      expect_tensor(files, weight + ".nested_absmax", {{blocks_in(count, s.nested_block)}, DType::f32}));
  const Elements<float> table(expect_tensor(files, weight + ".nested_quant_map", {{256}, DType::f32}));
  const auto offset = static_cast<float>(s.nested_offset);
  for (std::int64_t i = 0; i < count; ++i)
    scales[static_cast<std::size_t>(i)] = table[codes[i]] * outer[i / s.nested_block] + offset;
  return scales;
}

/// A tensor of a file as one of another shape. Kernels read numbers at addresses that are multiples of their size.
bool is_aligned(const View& v) { return std::bit_cast<std::uintptr_t>(v.data()) % 4 == 0; }

/// The matrix as kernels multiply it: NF4 or FP4 in blocks of 64 that divide its rows, nested scales in blocks of 256.
std::optional<PackedParts> four_bit_parts(const TensorFolder& files, const std::string& weight, const QuantState& s,
                                          const View& codes, std::span<const float> table) {
  const bool nested = s.nested_block > 0;
  const bool nf4 = std::ranges::equal(table, kNf4Values);
  if (s.block != 64 || s.columns % s.block != 0 || (nested && s.nested_block != 256) ||
      (!nf4 && !std::ranges::equal(table, kFp4Values)))
    return std::nullopt;
  PackedParts p{.format = nf4      ? nested ? QuantFormat::nf4_double : QuantFormat::nf4
                          : nested ? QuantFormat::fp4_double
                                   : QuantFormat::fp4};
  const auto specs = quant_parts(p.format, s.rows, s.columns);
  const View scales = files.at(weight + ".absmax"), outer = nested ? files.at(weight + ".nested_absmax") : View();
  if (!is_aligned(outer) || (!nested && !is_aligned(scales))) return std::nullopt;
  p.parts = {
      .codes = View(codes.data(), specs.codes), .scale = View(scales.data(), specs.scale), .outer = {}, .table = {}};
  if (!nested) return p;
  const Elements<float> map(files.at(weight + ".nested_quant_map"));
  for (std::int64_t i = 0; i < 256; ++i) p.table.push_back(map[i]);
  p.table.push_back(static_cast<float>(s.nested_offset));
  p.parts.outer = View(outer.data(), specs.outer);
  return p;
}

std::optional<PackedMatrix> four_bits(const TensorFolder& files, const std::string& weight,
                                      const std::string& state_name) {
  const View state = files.at(state_name);
  const auto where = files.path().string() + ": " + state_name;
  require(state.dtype() == DType::u8, "io", "{}: expected bytes, found {}", where, to_string(state.spec()));
  const auto s = read_state(state, where);
  const auto n = s.rows * s.columns;
  const View codes = expect_tensor(files, weight, {{(n + 1) / 2, 1}, DType::u8});
  const Elements<float> map(expect_tensor(files, weight + ".quant_map", {{16}, DType::f32}));
  std::vector<float> table;
  for (int i = 0; i < 16; ++i) table.push_back(map[i]);
  auto scales = scales_of(files, weight, s);
  auto parts = four_bit_parts(files, weight, s, codes, table);
  return PackedMatrix{.rows = s.rows,
                      .columns = s.columns,
                      .dtype = s.dtype,
                      .decode =
                          [s, codes, table = std::move(table), scales = std::move(scales)](
                              std::int64_t begin, std::int64_t end, float* out) {
                            const auto* bytes = codes.ptr<std::uint8_t>();
                            for (auto i = begin * s.columns; i < end * s.columns; ++i) {
                              const int code = i % 2 == 0 ? bytes[i / 2] >> 4 : bytes[i / 2] & 15;
                              *out++ =
                                  table[static_cast<std::size_t>(code)] * scales[static_cast<std::size_t>(i / s.block)];
                            }
                          },
                      .parts = std::move(parts)};
}

/// Rows of bytes with one scale each.
std::optional<PackedMatrix> int8_rows(const PackConfig& config, const TensorFolder& files, const std::string& stem) {
  const View codes = files.at(stem + "weight");
  require(codes.rank() == 2 && codes.dtype() == DType::i8, "io", "{}: {}weight: expected a matrix of I8, found {}",
          files.path().string(), stem, to_string(codes.spec()));
  if (const auto format = files.find(stem + "weight_format"))
    require(format->bytes() >= 1 && format->ptr<std::uint8_t>()[0] == 0, "io",
            "{}: {}weight_format: expected 0, rows in order, found another layout", files.path().string(), stem);
  const View scb = expect_tensor(files, stem + "SCB", {{codes[0]}, DType::f32});
  const Elements<float> scales(scb);
  std::optional<PackedParts> parts;
  if (codes[1] % 32 == 0 && is_aligned(scb))
    parts = PackedParts{.format = QuantFormat::int8, .parts = {.codes = codes, .scale = scb, .outer = {}, .table = {}}};
  return PackedMatrix{.rows = codes[0],
                      .columns = codes[1],
                      .dtype = config.dtype,
                      .decode =
                          [codes, scales](std::int64_t begin, std::int64_t end, float* out) {
                            constexpr float kOneOf127 = 1.0f / 127;
                            const auto* q = codes.ptr<std::int8_t>();
                            for (auto r = begin; r < end; ++r)
                              for (std::int64_t c = 0; c < codes[1]; ++c)
                                *out++ = static_cast<float>(q[r * codes[1] + c]) * scales[r] * kOneOf127;
                          },
                      .parts = std::move(parts)};
}

}  // namespace

std::optional<PackedMatrix> find_bitsandbytes(const PackConfig& config, const TensorFolder& files,
                                              const std::string& stem) {
  const auto weight = stem + "weight";
  for (const char* kind : {"nf4", "fp4"})
    if (const auto state = weight + ".quant_state.bitsandbytes__" + kind; files.contains(state))
      return four_bits(files, weight, state);
  if (files.contains(stem + "SCB")) return int8_rows(config, files, stem);
  return std::nullopt;
}

}  // namespace hpcdl::io
