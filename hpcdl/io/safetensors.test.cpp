#include "hpcdl/io/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "hpcdl/buffer.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/python_for_tests.h"
#include "hpcdl/io/safetensors_writer.h"

namespace hpcdl::io {
namespace {

const fs::path kGolden = fs::path(HPCDL_SOURCE_DIR) / "hpcdl/io/golden";

/// Element i as make_safetensors.py defines it.
template <class T> void expect_golden(View v) {
  ASSERT_EQ(v.dtype(), dtype_of<T>);
  const std::int64_t n = v.size();
  for (std::int64_t i = 0; i < n; ++i) {
    T got;
    std::memcpy(&got, v.ptr<std::byte>() + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    const double steps = static_cast<double>(i - n / 2);
    const double want = std::is_same_v<T, std::uint8_t> ? static_cast<double>(i)
                        : is_float(v.dtype())           ? steps / 4
                                                        : steps;
    EXPECT_EQ(static_cast<double>(static_cast<float>(got)), want) << i;
  }
}

TEST(safetensors, reads_what_the_original_library_wrote) {
  const auto file = SafeTensors::open(kGolden / "all_dtypes.safetensors");
  EXPECT_EQ(file.tensors().size(), 13u);
  EXPECT_EQ(file.metadata().at("made by"), "make_safetensors.py");
  expect_golden<double>(file.at("f64"));
  expect_golden<float>(file.at("f32"));
  expect_golden<f16>(file.at("f16"));
  expect_golden<bf16>(file.at("bf16"));
  expect_golden<std::int64_t>(file.at("i64"));
  expect_golden<std::int32_t>(file.at("i32"));
  expect_golden<std::int16_t>(file.at("i16"));
  expect_golden<std::int8_t>(file.at("i8"));
  expect_golden<std::uint8_t>(file.at("u8"));
  expect_golden<float>(file.at("scalar"));
  expect_golden<float>(file.at("odd \"name\" \u00e9"));
  EXPECT_EQ(file.at("bf16").shape(), (Shape{2, 2, 3}));
  EXPECT_EQ(file.at("scalar").rank(), 0);
  EXPECT_EQ(file.at("empty").shape(), (Shape{0, 4}));
  const View flags = file.at("bool");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(flags.ptr<std::uint8_t>()[i], i % 3 == 0);
  const auto* begin = file.file().data();
  EXPECT_TRUE(flags.ptr<std::byte>() >= begin && flags.ptr<std::byte>() < begin + file.file().size())
      << "must be a view, not a copy";
}

TEST(tensor_folder, reads_shards) {
  const auto folder = TensorFolder::open(kGolden / "sharded");
  EXPECT_EQ(folder.shards().size(), 2u);
  for (const char* name : {"a", "b", "c"}) {
    expect_golden<float>(folder.at(name));
    EXPECT_EQ(folder.at(name)[1], name[0] - 90);
  }
  EXPECT_FALSE(folder.find("d"));
}

TEST(safetensors, a_missing_tensor_names_the_nearest) {
  const auto file = SafeTensors::open(kGolden / "all_dtypes.safetensors");
  try {
    file.at("scaler");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("did you mean 'scalar'"), std::string::npos) << e.what();
  }
}

OwnedTensor counted(Spec spec) {
  OwnedTensor t(spec);
  for (std::int64_t i = 0; i < spec.bytes(); ++i) t.buffer.data()[i] = static_cast<std::byte>(i * 7 + spec.bytes());
  return t;
}

struct Sample {
  std::vector<NamedSpec> specs = {{"bytes", {{3}, DType::u8}},        {"w", {{5, 7}, DType::f32}},
                                  {"half", {{2, 3, 4}, DType::bf16}}, {"none", {{0}, DType::f32}},
                                  {"step", {{}, DType::i64}},         {"caf\u00e9", {{9}, DType::f16}}};
  std::vector<OwnedTensor> tensors;
  Sample() {
    for (const auto& s : specs) tensors.push_back(counted(s.spec));
  }
};

TEST(safetensors_writer, round_trips_in_any_order_and_aligned) {
  const TempFolder tmp;
  const Sample s;
  SafeTensorsWriter writer(tmp / "x.safetensors", s.specs);
  for (std::size_t i = s.specs.size(); i-- > 0;) writer.write(s.specs[i].name, s.tensors[i].tensor);
  writer.commit();
  const auto file = SafeTensors::open(tmp / "x.safetensors");
  EXPECT_EQ(file.metadata(), kPtMetadata);
  EXPECT_EQ(file.tensors().front().offset % 64, 0);
  for (std::size_t i = 0; i < s.specs.size(); ++i) {
    const View v = file.at(s.specs[i].name);
    ASSERT_EQ(v.spec(), s.specs[i].spec);
    EXPECT_EQ(std::memcmp(v.data(), s.tensors[i].tensor.data(), static_cast<std::size_t>(v.bytes())), 0);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(v.data()) % static_cast<unsigned>(dtype_bytes(v.dtype())), 0u);
  }
}

TEST(safetensors_writer, strided_views_are_written_dense) {
  const TempFolder tmp;
  const OwnedTensor w = counted({{70, 45}, DType::f32});
  const View transposed(w.tensor.data(), {{45, 70}, DType::f32}, {1, 45}, {});
  SafeTensorsWriter writer(tmp / "t.safetensors", {{"t", transposed.spec()}});
  writer.write("t", transposed);
  writer.commit();
  const auto file = SafeTensors::open(tmp / "t.safetensors");
  for (int i = 0; i < 45; ++i)
    for (int j = 0; j < 70; ++j)
      ASSERT_EQ(std::memcmp(file.at("t").ptr<float>() + i * 70 + j, w.tensor.ptr<float>() + j * 45 + i, 4), 0);
}

TEST(safetensors_writer, misuse_is_an_error_and_leaves_no_file) {
  const TempFolder tmp;
  const Sample s;
  {
    SafeTensorsWriter writer(tmp / "x", s.specs);
    EXPECT_THROW(writer.write("nope", s.tensors[0].tensor), Error);
    EXPECT_THROW(writer.write("w", s.tensors[0].tensor), Error);
    writer.write("w", s.tensors[1].tensor);
    EXPECT_THROW(writer.write("w", s.tensors[1].tensor), Error);
    EXPECT_THROW(writer.commit(), Error);
  }
  EXPECT_TRUE(fs::is_empty(tmp.path()));
  EXPECT_THROW(SafeTensorsWriter(tmp / "x", {{"a", {{1}, DType::f32}}, {"a", {{1}, DType::f32}}}), Error);
  EXPECT_THROW(SafeTensorsWriter(tmp / "x", {{"\xff", {{1}, DType::f32}}}), Error);
  EXPECT_THROW(SafeTensorsWriter(tmp / "x", {{"a", {}}}), Error);
}

TEST(tensor_folder_writer, shards_and_goes_back_to_one_file) {
  const TempFolder tmp;
  const Sample s;
  for (const std::int64_t limit : {64, 1 << 20}) {
    TensorFolderWriter writer(tmp.path(), s.specs, limit);
    for (std::size_t i = 0; i < s.specs.size(); ++i) writer.write(s.specs[i].name, s.tensors[i].tensor);
    writer.commit();
    const auto folder = TensorFolder::open(tmp.path());
    EXPECT_EQ(folder.shards().size() > 1, limit == 64);
    EXPECT_EQ(folder.tensors().size(), s.specs.size());
    for (std::size_t i = 0; i < s.specs.size(); ++i) {
      const View v = folder.at(s.specs[i].name);
      EXPECT_EQ(std::memcmp(v.data(), s.tensors[i].tensor.data(), static_cast<std::size_t>(v.bytes())), 0);
    }
  }
}

TEST(safetensors_writer, the_original_library_reads_what_we_write) {
  const auto python = find_python("torch, safetensors");
  if (!python) GTEST_SKIP() << "no Python with torch and safetensors; set HPCDL_PYTHON";
  const TempFolder tmp;
  const Sample s;
  TensorFolderWriter writer(tmp.path(), s.specs);
  for (std::size_t i = 0; i < s.specs.size(); ++i) writer.write(s.specs[i].name, s.tensors[i].tensor);
  writer.commit();
  std::string script =
      "import sys, torch\nfrom safetensors import safe_open\nf = safe_open(sys.argv[1], 'pt')\n"
      "assert f.metadata() == {'format': 'pt'}, f.metadata()\n"
      "for k in sorted(f.keys()):\n  t = f.get_tensor(k)\n"
      "  print(k, list(t.shape), t.dtype, bytes(t.reshape(-1).view(torch.uint8).tolist()).hex() if t.dim() else "
      "t.item())\n";
  bool ok = false;
  const std::string out = run_python(*python, script, (tmp / "model.safetensors").string(), ok);
  ASSERT_TRUE(ok) << out;
  std::string hex;
  for (std::int64_t i = 0; i < 140; ++i)
    hex += fmt::format("{:02x}", static_cast<unsigned>(s.tensors[1].buffer.data()[i]));
  EXPECT_NE(out.find("w [5, 7] torch.float32 " + hex), std::string::npos) << out;
  EXPECT_NE(out.find("half [2, 3, 4] torch.bfloat16"), std::string::npos) << out;
}

TEST(tensor_folder, bad_index_files_are_errors) {
  for (const char* index :
       {"{}", "[]", "{\"weight_map\": 3}", "{\"weight_map\": {\"a\": 3}}", "{\"weight_map\": {\"a\": \"../x\"}}",
        "{\"weight_map\": {\"a\": \"missing.safetensors\"}}", "{\"weight_map\": {\"a\": \"\"}}", "{", ""}) {
    const TempFolder tmp;
    write_file_atomic(tmp / "model.safetensors.index.json", index);
    EXPECT_THROW(TensorFolder::open(tmp.path()), Error) << index;
  }
  EXPECT_THROW(TensorFolder::open("/nowhere/at/all"), Error);
}

}  // namespace
}  // namespace hpcdl::io
