// Folders of other programs, packed here by the rules of their formats, are decoded to the bit.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/core/f8.h"
#include "hpcdl/io/foreign/packed_matrix.h"
#include "hpcdl/io/safetensors_writer.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/ops/quant_linear/four_bit_values.h"
#include "hpcdl/rng.h"

namespace hpcdl::io {
namespace {

/// A file made of typed lists.
class Packer {
 public:
  template <class T> void add(const std::string& name, DType dtype, const Shape& shape, const std::vector<T>& values) {
    specs_.push_back({name, {shape, dtype}});
    auto& bytes = bytes_[name];
    bytes.resize(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    ASSERT_EQ(static_cast<std::int64_t>(bytes.size()), specs_.back().spec.bytes()) << name;
  }

  TensorFolder folder() {
    SafeTensorsWriter writer(tmp_ / "model.safetensors", specs_);
    for (const auto& s : specs_) writer.write(s.name, View(bytes_[s.name].data(), s.spec));
    writer.commit();
    return TensorFolder::open(tmp_ / "model.safetensors");
  }

 private:
  TempFolder tmp_;
  std::vector<NamedSpec> specs_;
  std::map<std::string, std::vector<char>> bytes_;
};

const Rng kRng{11, 2};
std::uint64_t draw = 0;
int below(std::uint64_t n) { return static_cast<int>(kRng.below(draw++, n)); }
f16 half() { return f16(static_cast<float>(kRng.normal(draw++)) * 0.01f); }

void expect_bits(const PackConfig& config, const TensorFolder& files, std::int64_t rows, std::int64_t columns,
                 const std::vector<float>& want) {
  const auto m = find_packed(config, files, "a.weight");
  ASSERT_TRUE(m.has_value());
  ASSERT_EQ(m->rows, rows);
  ASSERT_EQ(m->columns, columns);
  std::vector<float> got(want.size());
  const auto half_way = rows / 3;
  m->decode(0, half_way, got.data());
  m->decode(half_way, rows, got.data() + half_way * columns);
  for (std::size_t i = 0; i < want.size(); ++i)
    ASSERT_EQ(std::bit_cast<std::uint32_t>(got[i]), std::bit_cast<std::uint32_t>(want[i])) << i;
  EXPECT_FALSE(find_packed(config, files, "b.weight").has_value());
  EXPECT_FALSE(find_packed(config, files, "a.bias").has_value());
}

std::string error_of(const PackConfig& config, const TensorFolder& files) {
  try {
    find_packed(config, files, "a.weight");
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

/// Appends codes of `bits` bits to words of 32, one after the other.
std::vector<std::uint32_t> in_words(const std::vector<int>& codes, int bits) {
  std::vector<std::uint32_t> words((codes.size() * static_cast<std::size_t>(bits) + 31) / 32);
  for (std::size_t i = 0; i < codes.size(); ++i)
    for (int b = 0; b < bits; ++b) {
      const auto at = i * static_cast<std::size_t>(bits) + static_cast<std::size_t>(b);
      words[at / 32] |= static_cast<std::uint32_t>(codes[i] >> b & 1) << at % 32;
    }
  return words;
}

struct GptqCase {
  int bits;
  bool version2, ordered_by_activation;
};

TEST(packed, gptq) {
  for (const auto& c :
       {GptqCase{4, false, false}, {4, true, true}, {8, false, true}, {2, true, false}, {3, false, false}}) {
    SCOPED_TRACE(c.bits);
    const std::int64_t K = 96, N = 64, G = 3;
    std::vector<int> group(K);
    for (std::int64_t k = 0; k < K; ++k)
      group[static_cast<std::size_t>(k)] = c.ordered_by_activation ? below(G) : static_cast<int>(k / 32);
    std::vector<f16> scales;
    std::vector<int> zeros;
    for (std::int64_t i = 0; i < G * N; ++i) scales.push_back(half()), zeros.push_back(below(1u << c.bits));
    std::vector<int> q;
    for (std::int64_t i = 0; i < K * N; ++i) q.push_back(below(1u << c.bits));  // (K, N)
    Packer p;
    const auto words_down = K * c.bits / 32, words_across = N * c.bits / 32;
    std::vector<std::uint32_t> qweight(static_cast<std::size_t>(words_down * N)), qzeros;
    for (std::int64_t n = 0; n < N; ++n) {
      std::vector<int> column;
      for (std::int64_t k = 0; k < K; ++k) column.push_back(q[static_cast<std::size_t>(k * N + n)]);
      const auto words = in_words(column, c.bits);
      for (std::int64_t w = 0; w < words_down; ++w)
        qweight[static_cast<std::size_t>(w * N + n)] = words[static_cast<std::size_t>(w)];
    }
    for (std::int64_t g = 0; g < G; ++g) {
      std::vector<int> row;
      for (std::int64_t n = 0; n < N; ++n) {
        const int zero = zeros[static_cast<std::size_t>(g * N + n)];
        row.push_back(c.version2 ? zero : (zero - 1) & ((1 << c.bits) - 1));
      }
      for (const auto w : in_words(row, c.bits)) qzeros.push_back(w);
    }
    p.add("a.qweight", DType::i32, {words_down, N}, qweight);
    p.add("a.qzeros", DType::i32, {G, words_across}, qzeros);
    p.add("a.scales", DType::f16, {G, N}, scales);
    if (c.ordered_by_activation) p.add("a.g_idx", DType::i32, {K}, group);
    std::vector<float> want;
    for (std::int64_t n = 0; n < N; ++n)
      for (std::int64_t k = 0; k < K; ++k) {
        const auto g = static_cast<std::size_t>(group[static_cast<std::size_t>(k)] * N + n);
        want.push_back(float{scales[g]} * static_cast<float>(q[static_cast<std::size_t>(k * N + n)] - zeros[g]));
      }
    PackConfig config{.method = PackMethod::gptq, .bits = c.bits, .group = 32};
    config.zeros_less_one = !c.version2;
    expect_bits(config, p.folder(), N, K, want);
  }
}

TEST(packed, gptq_that_is_damaged) {
  const auto with = [](const std::vector<int>& groups, const Shape& zeros, std::int64_t group) {
    Packer p;
    p.add("a.qweight", DType::i32, {4, 8}, std::vector<std::uint32_t>(32));
    p.add("a.qzeros", DType::i32, zeros, std::vector<std::uint32_t>(static_cast<std::size_t>(zeros.size())));
    p.add("a.scales", DType::f16, {2, 8}, std::vector<f16>(16));
    if (!groups.empty()) p.add("a.g_idx", DType::i32, {32}, groups);
    return error_of({.method = PackMethod::gptq, .bits = 4, .group = group}, p.folder());
  };
  std::vector<int> groups(32, 1);
  EXPECT_EQ(with(groups, {2, 1}, 16), "accepted");
  groups[9] = 2;
  EXPECT_NE(with(groups, {2, 1}, 16).find("a.g_idx: expected groups 0 to 1 for the 32 inputs, found 2 for input 9"),
            std::string::npos)
      << with(groups, {2, 1}, 16);
  groups[9] = -1;
  EXPECT_NE(with(groups, {2, 1}, 16).find("found -1 for input 9"), std::string::npos);
  EXPECT_NE(with({}, {2, 1}, 8).find("a.scales: expected groups 0 to 1"), std::string::npos);
  EXPECT_NE(with({}, {2, 2}, 16).find("a.qzeros: expected I32 (2, 1)"), std::string::npos) << with({}, {2, 2}, 16);
}

TEST(packed, awq) {
  constexpr int kOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};  // the output that nibble i holds
  const std::int64_t K = 64, N = 24, group = 16, G = K / group;
  std::vector<int> q, zeros;
  std::vector<f16> scales;
  for (std::int64_t i = 0; i < K * N; ++i) q.push_back(below(16));
  for (std::int64_t i = 0; i < G * N; ++i) zeros.push_back(below(16)), scales.push_back(half());
  const auto packed = [&](const std::vector<int>& codes) {
    std::vector<std::uint32_t> words;
    for (std::size_t first = 0; first < codes.size(); first += 8) {
      std::uint32_t w = 0;
      for (std::size_t i = 0; i < 8; ++i)
        w |= static_cast<std::uint32_t>(codes[first + static_cast<std::size_t>(kOrder[i])]) << 4 * i;
      words.push_back(w);
    }
    return words;
  };
  Packer p;
  p.add("a.qweight", DType::i32, {K, N / 8}, packed(q));
  p.add("a.qzeros", DType::i32, {G, N / 8}, packed(zeros));
  p.add("a.scales", DType::f16, {G, N}, scales);
  std::vector<float> want;
  for (std::int64_t n = 0; n < N; ++n)
    for (std::int64_t k = 0; k < K; ++k) {
      const auto g = static_cast<std::size_t>(k / group * N + n);
      want.push_back(float{scales[g]} * static_cast<float>(q[static_cast<std::size_t>(k * N + n)] - zeros[g]));
    }
  PackConfig config{.method = PackMethod::awq, .bits = 4, .group = group};
  const auto files = p.folder();
  expect_bits(config, files, N, K, want);
  config.group = 24;
  EXPECT_NE(error_of(config, files).find("expected inputs in groups of 24, found 64"), std::string::npos);
}

/// The 16 numbers of NF4, as bitsandbytes stores them.
const std::vector<float> kNf4 = {-1.0f,        -0.6961928f, -0.52507305f, -0.39491749f, -0.28444138f, -0.18477343f,
                                 -0.09105004f, 0.0f,        0.0795803f,   0.1609302f,   0.2461123f,   0.33791524f,
                                 0.44070983f,  0.562617f,   0.72295684f,  1.0f};

void add_bytes(Packer& p, const std::string& name, const std::string& text) {
  p.add(name, DType::u8, {std::ssize(text)}, std::vector<char>(text.begin(), text.end()));
}

TEST(packed, bitsandbytes_in_four_bits) {
  for (const bool nested : {false, true}) {
    SCOPED_TRACE(nested);
    const std::int64_t N = 10, K = 100, n = N * K, blocks = (n + 63) / 64;  // the last block is not full
    std::vector<int> q;
    std::vector<std::uint8_t> bytes;
    for (std::int64_t i = 0; i < n; ++i) q.push_back(below(16));
    for (std::size_t i = 0; i < q.size(); i += 2) bytes.push_back(static_cast<std::uint8_t>(q[i] << 4 | q[i + 1]));
    Packer p;
    p.add("a.weight", DType::u8, {n / 2, 1}, bytes);
    p.add("a.weight.quant_map", DType::f32, {16}, kNf4);
    std::vector<float> scales;
    std::string state = R"({"quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": [10, 100])";
    if (nested) {
      std::vector<float> table, outer;
      std::vector<std::uint8_t> codes;
      for (int i = 0; i < 256; ++i) table.push_back(static_cast<float>(i - 127) / 128);
      for (std::int64_t i = 0; i < (blocks + 3) / 4; ++i) outer.push_back(static_cast<float>(below(100)) * 0.013f);
      for (std::int64_t i = 0; i < blocks; ++i) {
        codes.push_back(static_cast<std::uint8_t>(below(256)));
        const float product = table[codes.back()] * outer[static_cast<std::size_t>(i / 4)];
        scales.push_back(product + 0.37f);
      }
      p.add("a.weight.absmax", DType::u8, {blocks}, codes);
      p.add("a.weight.nested_absmax", DType::f32, {std::ssize(outer)}, outer);
      p.add("a.weight.nested_quant_map", DType::f32, {256}, table);
      state += R"(, "nested_blocksize": 4, "nested_dtype": "float32", "nested_offset": 0.37)";
    } else {
      for (std::int64_t i = 0; i < blocks; ++i) scales.push_back(static_cast<float>(below(100)) * 0.013f);
      p.add("a.weight.absmax", DType::f32, {blocks}, scales);
    }
    add_bytes(p, "a.weight.quant_state.bitsandbytes__nf4", state + "}");
    std::vector<float> want;
    for (std::size_t i = 0; i < q.size(); ++i) want.push_back(kNf4[static_cast<std::size_t>(q[i])] * scales[i / 64]);
    const auto files = p.folder();
    expect_bits({}, files, N, K, want);
    EXPECT_EQ(find_packed({}, files, "a.weight")->dtype, DType::f16);
  }
}

/// What kernels multiply as it is: whole blocks of 64 of the values of NF4 or FP4, nested in 256.
TEST(packed, bitsandbytes_that_need_not_be_decoded) {
  const auto parts_of = [](std::int64_t columns, std::int64_t block, std::int64_t nested,
                           std::span<const float> values) {
    const std::int64_t n = 3 * columns, blocks = (n + block - 1) / block;
    Packer p;
    const std::vector<float> map(values.begin(), values.end());
    p.add("a.weight", DType::u8, {n / 2, 1}, std::vector<std::uint8_t>(static_cast<std::size_t>(n / 2), 0x5a));
    p.add("a.weight.quant_map", DType::f32, {16}, map);
    auto state = fmt::format(R"({{"blocksize": {}, "shape": [3, {}])", block, columns);
    if (nested > 0) {
      const auto outer = (blocks + nested - 1) / nested;
      p.add("a.weight.absmax", DType::u8, {blocks}, std::vector<std::uint8_t>(static_cast<std::size_t>(blocks), 7));
      p.add("a.weight.nested_absmax", DType::f32, {outer}, std::vector<float>(static_cast<std::size_t>(outer), 2));
      p.add("a.weight.nested_quant_map", DType::f32, {256}, std::vector<float>(256, 0.5f));
      state += fmt::format(R"(, "nested_blocksize": {}, "nested_offset": 0.25)", nested);
    } else {
      p.add("a.weight.absmax", DType::f32, {blocks}, std::vector<float>(static_cast<std::size_t>(blocks), 3));
    }
    add_bytes(p, "a.weight.quant_state.bitsandbytes__nf4", state + "}");
    const auto files = p.folder();
    const auto m = find_packed({}, files, "a.weight");
    if (m->parts) {
      const auto want = quant_parts(m->parts->format, 3, columns);
      EXPECT_EQ(m->parts->parts.codes.spec(), want.codes);
      EXPECT_EQ(m->parts->parts.codes.data(), files.at("a.weight").data()) << "no copy";
      EXPECT_EQ(m->parts->parts.scale.spec(), want.scale);
      EXPECT_EQ(m->parts->parts.outer.spec(), want.outer);
    }
    return m->parts;
  };
  EXPECT_EQ(parts_of(128, 64, 0, kNf4Values)->format, QuantFormat::nf4);
  EXPECT_EQ(parts_of(128, 64, 0, kFp4Values)->format, QuantFormat::fp4);
  EXPECT_EQ(parts_of(128, 64, 256, kFp4Values)->format, QuantFormat::fp4_double);
  const auto nested = parts_of(128, 64, 256, kNf4Values);
  EXPECT_EQ(nested->format, QuantFormat::nf4_double);
  ASSERT_EQ(nested->table.size(), 257u);
  EXPECT_EQ(nested->table[255], 0.5f);
  EXPECT_EQ(nested->table[256], 0.25f);
  EXPECT_FALSE(parts_of(96, 64, 0, kNf4Values)) << "blocks that go on in the next row";
  EXPECT_FALSE(parts_of(128, 128, 0, kNf4Values));
  EXPECT_FALSE(parts_of(128, 64, 128, kNf4Values));
  auto others = std::to_array(kNf4Values);
  others[3] = -0.4f;
  EXPECT_FALSE(parts_of(128, 64, 0, others));

  for (const std::int64_t columns : {64, 33}) {
    Packer p;
    p.add("a.weight", DType::i8, {2, columns}, std::vector<std::int8_t>(static_cast<std::size_t>(2 * columns), 1));
    p.add("a.SCB", DType::f32, {2}, std::vector<float>(2));
    EXPECT_EQ(find_packed({}, p.folder(), "a.weight")->parts.has_value(), columns == 64);
  }
}

TEST(packed, bitsandbytes_states_that_are_damaged) {
  const auto with = [](const std::string& state) {
    Packer p;
    p.add("a.weight", DType::u8, {32, 1}, std::vector<std::uint8_t>(32));
    p.add("a.weight.quant_map", DType::f32, {16}, kNf4);
    p.add("a.weight.absmax", DType::f32, {1}, std::vector<float>(1));
    add_bytes(p, "a.weight.quant_state.bitsandbytes__fp4", state);
    return error_of({}, p.folder());
  };
  EXPECT_EQ(with(R"({"blocksize": 64, "shape": [8, 8]})"), "accepted");
  for (const auto& [state, part] :
       {std::pair{R"({"blocksize": 64})", "shape: expected rows and columns, found none"},
        {R"({"blocksize": 64, "shape": [8]})", "shape: expected rows and columns"},
        {R"({"blocksize": 64, "shape": [8, -8]})", "shape: expected rows and columns"},
        {R"({"blocksize": 64, "shape": [9223372036854775807, 2]})", "expected sizes up to"},
        {R"({"blocksize": 0, "shape": [8, 8]})", "blocksize: expected 1 to"},
        {R"({"blocksize": 64, "shape": [8, 16]})", "a.weight: expected U8 (64, 1), found U8 (32, 1)"},
        {R"({"blocksize": 32, "shape": [8, 8]})", "a.weight.absmax: expected F32 (2)"},
        {R"({"blocksize": 64, "shape": [8, 8], "nested_blocksize": 0})", "blocksize: expected 1 to"},
        {R"({"blocksize": 64, "shape": [8, 8], "nested_blocksize": 4})", "a.weight.absmax: expected U8 (1)"},
        {"not JSON", "JSON"}})
    EXPECT_NE(with(state).find(part), std::string::npos) << with(state);
}

TEST(packed, bitsandbytes_in_eight_bits) {
  const std::int64_t N = 7, K = 33;
  std::vector<std::int8_t> q;
  std::vector<float> scales, want;
  for (std::int64_t i = 0; i < N * K; ++i) q.push_back(static_cast<std::int8_t>(below(255) - 127));
  for (std::int64_t i = 0; i < N; ++i) scales.push_back(static_cast<float>(below(1000)) * 0.0137f);
  for (std::int64_t i = 0; i < N * K; ++i) {
    const float scaled = static_cast<float>(q[static_cast<std::size_t>(i)]) * scales[static_cast<std::size_t>(i / K)];
    want.push_back(scaled * 7.874015718698502e-3f);
  }
  Packer p;
  p.add("a.weight", DType::i8, {N, K}, q);
  p.add("a.SCB", DType::f32, {N}, scales);
  p.add("a.weight_format", DType::u8, {1}, std::vector<std::uint8_t>{0});
  expect_bits({}, p.folder(), N, K, want);
  p.add("b.weight", DType::i8, {1, 1}, std::vector<std::int8_t>(1));
}

TEST(packed, blocks_of_f8) {
  const std::int64_t N = 20, K = 37, height = 8, width = 16;
  std::vector<std::uint8_t> q;
  std::vector<float> scales, want;
  for (std::int64_t i = 0; i < N * K; ++i) q.push_back(static_cast<std::uint8_t>(below(127) + 128 * below(2)));
  for (std::int64_t i = 0; i < 3 * 3; ++i) scales.push_back(static_cast<float>(below(1000)) * 0.0137f);
  for (std::int64_t r = 0; r < N; ++r)
    for (std::int64_t c = 0; c < K; ++c) {
      const int code = q[static_cast<std::size_t>(r * K + c)], exponent = code >> 3 & 15, mantissa = code & 7;
      const double magnitude =
          exponent == 0 ? mantissa * std::ldexp(1.0, -9) : (1 + mantissa / 8.0) * std::ldexp(1.0, exponent - 7);
      const auto value = static_cast<float>(code >= 128 ? -magnitude : magnitude);
      want.push_back(value * scales[static_cast<std::size_t>(r / height * 3 + c / width)]);
    }
  Packer p;
  p.add("a.weight", DType::f8_e4m3, {N, K}, q);
  p.add("a.weight_scale_inv", DType::f32, {3, 3}, scales);
  const auto files = p.folder();
  PackConfig config{.method = PackMethod::fp8, .block_rows = height, .block_columns = width};
  expect_bits(config, files, N, K, want);
  EXPECT_FALSE(find_packed(config, files, "a.weight")->parts) << "kernels multiply blocks of 128 x 128";
  config.block_rows = 4;
  EXPECT_NE(error_of(config, files).find("a.weight_scale_inv: expected F32 (5, 3)"), std::string::npos);
}

TEST(packed, tensors_belong_to_parameters) {
  for (const char* name : {"x.weight", "x.qweight", "x.qzeros", "x.scales", "x.g_idx", "x.weight.absmax", "x.SCB",
                           "x.weight.quant_state.bitsandbytes__nf4", "x.weight_scale_inv"})
    EXPECT_EQ(parameter_of(name), "x.weight") << name;
  EXPECT_EQ(parameter_of("x.bias"), "x.bias");
}

std::string config_error(const char* json) {
  try {
    pack_config_in(Json::parse(json), DType::f16, "config.json");
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

TEST(packed, configs) {
  const auto read = [](const char* json) { return pack_config_in(Json::parse(json), DType::f16, "config.json"); };
  const auto gptq = read(R"({"quant_method": "gptq", "bits": 3, "group_size": -1, "checkpoint_format": "gptq_v2"})");
  EXPECT_EQ(gptq->bits, 3);
  EXPECT_EQ(gptq->group, 0);
  EXPECT_FALSE(gptq->zeros_less_one);
  EXPECT_TRUE(read(R"({"quant_method": "gptq"})")->zeros_less_one);
  EXPECT_EQ(read(R"({"quant_method": "awq", "group_size": 64, "version": "GEMM"})")->group, 64);
  EXPECT_EQ(read(R"({"quant_method": "fp8", "weight_block_size": [128, 64]})")->block_columns, 64);
  EXPECT_EQ(read(R"({"quant_method": "bitsandbytes", "load_in_4bit": true})")->dtype, DType::f16);
  EXPECT_FALSE(read(R"({"quant_method": "hpcdl_int4"})"));
  for (const auto& [json, part] : {std::pair{R"({"quant_method": "gptq", "bits": 5})", "bits: expected 2, 3, 4 or 8"},
                                   {R"({"quant_method": "gptq", "group_size": 0})", "group_size"},
                                   {R"({"quant_method": "gptq", "checkpoint_format": "marlin"})", "checkpoint_format"},
                                   {R"({"quant_method": "awq", "version": "gemv"})", "version: expected gemm"},
                                   {R"({"quant_method": "awq", "zero_point": false})", "zero_point"},
                                   {R"({"quant_method": "fp8", "fmt": "e5m2"})", "fmt"},
                                   {R"({"quant_method": "fp8", "weight_block_size": [0, 1]})", "weight_block_size"}})
    EXPECT_NE(config_error(json).find(part), std::string::npos) << config_error(json);
}

}  // namespace
}  // namespace hpcdl::io
