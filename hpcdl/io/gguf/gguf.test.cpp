// Files that gguf-py made: every type to the bit, every kind of value, a model in two files.

#include <gtest/gtest.h>

#include <cstring>

#include "hpcdl/core/error.h"
#include "hpcdl/io/gguf/decode.h"
#include "hpcdl/io/gguf/file.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::io {
namespace {

const fs::path kGolden = fs::path(HPCDL_SOURCE_DIR) / "hpcdl/io/golden/gguf";

std::string error_of(auto&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

TEST(gguf, every_type_has_the_bits_of_gguf_py) {
  const auto file = GgufFile::open(kGolden / "types.gguf");
  const auto decoded = SafeTensors::open(kGolden / "types.safetensors");
  EXPECT_EQ(file.tensors().size(), decoded.tensors().size());
  for (const auto* t : file.tensors()) {
    const View expected = decoded.at(t->name);
    ASSERT_EQ(t->shape, expected.shape()) << t->name;
    EXPECT_EQ(t->name, info_of(t->type).name);
    std::vector<float> found(static_cast<std::size_t>(t->shape.size()));
    decode_blocks(t->type, file.data(*t), t->bytes / info_of(t->type).bytes, found.data());
    std::vector<float> wanted(found.size());
    std::memcpy(wanted.data(), expected.data(), wanted.size() * sizeof(float));
    for (std::size_t i = 0; i < found.size(); ++i)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(found[i]), std::bit_cast<std::uint32_t>(wanted[i]))
          << t->name << " " << i << ": " << found[i] << " and " << wanted[i];
  }
}

TEST(gguf, every_kind_of_value) {
  const auto file = GgufFile::open(kGolden / "kinds.gguf");
  const auto& m = file.metadata();
  EXPECT_EQ(m.architecture(), "llama");
  EXPECT_EQ(m.need<std::int64_t>("u8"), 200);
  EXPECT_EQ(m.need<std::int64_t>("i8"), -100);
  EXPECT_EQ(m.need<std::int64_t>("u16"), 60000);
  EXPECT_EQ(m.need<std::int64_t>("i16"), -30000);
  EXPECT_EQ(m.need<std::int64_t>("u32"), 4'000'000'000);
  EXPECT_EQ(m.need<std::int64_t>("i32"), -2'000'000'000);
  EXPECT_EQ(m.need<std::int64_t>("i64"), INT64_MIN);
  EXPECT_EQ(m.need<double>("f32"), 0.5);
  EXPECT_EQ(m.need<double>("f64"), -0.25);
  EXPECT_EQ(m.need<double>("u16"), 60000);
  EXPECT_TRUE(m.need<bool>("bool"));
  EXPECT_EQ(m.need<std::string_view>("text"), "one \u00e9");
  EXPECT_EQ(*m.list<std::string_view>("texts"), (std::vector<std::string_view>{"a", "", "ccc"}));
  EXPECT_EQ(*m.list<std::int64_t>("numbers"), (std::vector<std::int64_t>{1, -2, 3}));
  EXPECT_EQ(*m.list<double>("reals"), (std::vector<double>{0.5, -1.5}));
  EXPECT_EQ(*m.list<bool>("flags"), (std::vector<bool>{true, false}));
  EXPECT_FALSE(m.get<bool>("nothing"));
  const auto wrong = [&](auto&& f, const std::string& part) {
    EXPECT_NE(error_of(f).find(part), std::string::npos) << error_of(f);
  };
  wrong([&] { m.need<std::int64_t>("u64"); }, "u64: expected a whole number, found 18446744073709551615");
  wrong([&] { m.need<std::int64_t>("f32"); }, "f32: expected a whole number, found 0.5");
  wrong([&] { m.need<bool>("text"); }, "text: expected true or false");
  wrong([&] { m.need<bool>("flags"); }, "flags: expected true or false, found a list of 2 x bool");
  wrong([&] { m.list<double>("texts"); }, "texts: expected a list, each a number; found a list of 3 x text");
  wrong([&] { m.need<double>("nothing"); }, "expected a value of nothing, found none");
}

TEST(gguf, a_model_in_two_files) {
  const auto file = GgufFile::open(kGolden / "split-00001-of-00002.gguf");
  EXPECT_EQ(file.files().size(), 2u);
  for (const char* name : {"a", "b", "c"}) {
    const auto& t = file.at(name);
    EXPECT_EQ(t.shape, (Shape{2, 4}));
    float value = 0;
    std::memcpy(&value, file.data(t), sizeof value);
    EXPECT_EQ(value, static_cast<float>(name[0]));
  }
  EXPECT_NE(error_of([&] { file.at("bb"); }).find("expected a tensor"), std::string::npos);
  const auto second = kGolden / "split-00002-of-00002.gguf";
  EXPECT_NE(error_of([&] { GgufFile::open(second); }).find("open the first part, split-00001-of-00002.gguf"),
            std::string::npos);
  const TempFolder tmp;
  fs::copy_file(kGolden / "split-00001-of-00002.gguf", tmp / "split-00001-of-00002.gguf");
  EXPECT_NE(error_of([&] { GgufFile::open(tmp / "split-00001-of-00002.gguf"); }).find("split-00002-of-00002.gguf"),
            std::string::npos);
  fs::copy_file(kGolden / "split-00001-of-00002.gguf", tmp / "split-00002-of-00002.gguf");
  EXPECT_NE(error_of([&] { GgufFile::open(tmp / "split-00001-of-00002.gguf"); }).find("is in an earlier file"),
            std::string::npos);
  fs::copy_file(kGolden / "split-00001-of-00002.gguf", tmp / "renamed.gguf");
  EXPECT_NE(error_of([&] { GgufFile::open(tmp / "renamed.gguf"); }).find("do not rename the parts"), std::string::npos);
}

}  // namespace
}  // namespace hpcdl::io
