// What is encoded is near when it is decoded, and gguf-py reads the files and makes the same blocks.

#include "hpcdl/io/gguf/encode.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "hpcdl/core/error.h"
#include "hpcdl/io/gguf/decode.h"
#include "hpcdl/io/gguf/file.h"
#include "hpcdl/io/gguf/writer.h"
#include "hpcdl/io/python_for_tests.h"
#include "hpcdl/rng.h"

namespace hpcdl::io {
namespace {

constexpr GgufType kWritten[] = {GgufType::f32,  GgufType::f16,  GgufType::bf16, GgufType::q8_0,
                                 GgufType::q4_0, GgufType::q4_k, GgufType::q6_k};

/// Values of several sizes, with rows of zeros, of one sign, and with one outlier.
std::vector<float> rows_of_values(std::int64_t rows, std::int64_t columns) {
  const Rng rng{3, 1};
  std::vector<float> x;
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    const auto row = i / columns;
    const auto v = static_cast<float>(rng.normal(static_cast<std::uint64_t>(i)));
    x.push_back(row == 0                       ? 0
                : row == 1                     ? std::fabs(v)
                : row == 2 && i % columns == 7 ? 50 * v
                                               : v * std::ldexp(1.0f, static_cast<int>(row % 9) - 4));
  }
  return x;
}

std::vector<std::byte> encoded(GgufType type, const std::vector<float>& x) {
  const auto& info = info_of(type);
  const auto blocks = std::ssize(x) / info.elements;
  std::vector<std::byte> out(static_cast<std::size_t>(blocks * info.bytes));
  encode_blocks(type, x.data(), blocks, out.data());
  return out;
}

TEST(gguf_encode, a_decoded_block_is_near) {
  const std::int64_t columns = 512;
  const auto x = rows_of_values(40, columns);
  // Of a group, the step is 1/127, 1/8, 1/15 and 1/32 of the largest value; a uniform rounding error has 0.29 steps RMS, and
  // of normal values the largest of 16 or 32 is about twice their RMS. Scales in 6 and 8 bits add to it.
  const std::pair<GgufType, double> bounds[] = {{GgufType::f32, 0},     {GgufType::f16, 5e-4},  {GgufType::bf16, 4e-3},
                                                {GgufType::q8_0, 0.01}, {GgufType::q4_0, 0.12}, {GgufType::q4_k, 0.09},
                                                {GgufType::q6_k, 0.025}};
  for (const auto& [type, bound] : bounds) {
    const auto blocks = encoded(type, x);
    std::vector<float> y(x.size());
    decode_blocks(type, blocks.data(), std::ssize(x) / info_of(type).elements, y.data());
    for (std::int64_t row = 0; row < 40; ++row) {
      double miss = 0, all = 0;
      for (auto i = static_cast<std::size_t>(row * columns); i < static_cast<std::size_t>((row + 1) * columns); ++i)
        miss += std::pow(double{y[i]} - double{x[i]}, 2), all += std::pow(double{x[i]}, 2);
      EXPECT_LE(std::sqrt(miss), (row == 2 ? 2 : 1) * bound * std::sqrt(all)) << info_of(type).name << " row " << row;
    }
    EXPECT_EQ(encoded(type, y), encoded(type, y)) << "encoding depends on nothing else";
  }
  EXPECT_THROW(encode_blocks(GgufType::q2_k, x.data(), 1, std::vector<std::byte>(84).data()), Error);
}

TEST(gguf_encode, gguf_py_reads_the_file_and_makes_the_same_blocks) {
  const auto python = find_python("gguf, numpy");
  if (!python) GTEST_SKIP() << "no Python with gguf and numpy";
  const auto x = rows_of_values(12, 512);
  const TempFolder tmp;
  std::vector<GgufWriter::Tensor> tensors;
  for (const auto type : kWritten) tensors.push_back({std::string(info_of(type).name), type, {12, 512}});
  GgufValues values;
  values.add("general.architecture", "llama");
  values.add("text", "one \u00e9"), values.add("flag", true), values.add("number", std::uint32_t{7});
  values.add("texts", std::vector<std::string>{"a", "", "b c"}), values.add("reals", std::vector<float>{0.5f});
  values.add("numbers", std::vector<std::int32_t>{-1, 2}), values.add("real", 0.25f);
  GgufWriter writer(tmp / "x.gguf", values, tensors);
  for (const auto type : kWritten) writer.append(encoded(type, x));
  writer.commit();

  bool ok = false;
  const auto out = run_python(*python, R"(
import sys, gguf, numpy as np
from gguf.quants import quantize, dequantize
r = gguf.GGUFReader(sys.argv[1])
f = {k: v.contents() for k, v in r.fields.items()}
assert f["text"] == "one é" and f["flag"] is True and f["number"] == 7 and f["real"] == 0.25, f
assert f["texts"] == ["a", "", "b c"] and f["reals"] == [0.5] and f["numbers"] == [-1, 2], f
t = {t.name: t for t in r.tensors}
x = t["F32"].data
for name in ("F16", "BF16", "Q8_0", "Q4_0"):
    want = quantize(x, gguf.GGMLQuantizationType[name]).view(np.uint8).tobytes()
    assert t[name].data.tobytes() == want, name
for name in t:
    y = dequantize(t[name].data, t[name].tensor_type)
    assert y.shape == (12, 512), (name, y.shape)
    print(name, int(np.sum(np.ascontiguousarray(y).view(np.uint32), dtype=np.uint64)))
)",
                              (tmp / "x.gguf").string(), ok);
  ASSERT_TRUE(ok) << out;
  const auto file = GgufFile::open(tmp / "x.gguf");
  for (const auto* t : file.tensors()) {
    std::vector<float> y(x.size());
    decode_blocks(t->type, file.data(*t), t->bytes / info_of(t->type).bytes, y.data());
    std::uint64_t sum = 0;
    for (const float v : y) sum += std::bit_cast<std::uint32_t>(v);
    EXPECT_NE(out.find(t->name + " " + std::to_string(sum) + "\n"), std::string::npos) << t->name << "\n" << out;
  }
}

TEST(gguf_encode, a_writer_needs_all_blocks_and_no_more) {
  const TempFolder tmp;
  GgufValues values;
  EXPECT_THROW(GgufWriter(tmp / "a", values, {{"t", GgufType::q8_0, {33}}}), Error);
  GgufWriter writer(tmp / "a", values, {{"t", GgufType::f32, {3}}, {"none", GgufType::f32, {0}}});
  writer.append(std::vector<std::byte>(8));
  EXPECT_THROW(writer.commit(), Error);
  EXPECT_THROW(writer.append(std::vector<std::byte>(8)), Error);
  writer.append(std::vector<std::byte>(4));
  EXPECT_FALSE(fs::exists(tmp / "a"));
  writer.commit();
  EXPECT_EQ(GgufFile::open(tmp / "a").at("t").bytes, 12);
}

}  // namespace
}  // namespace hpcdl::io
