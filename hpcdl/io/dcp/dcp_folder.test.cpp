// Distributed checkpoints of PyTorch: a golden folder that torch wrote, one that torch writes now, and hostile ones.

#include "hpcdl/io/dcp/dcp_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <tuple>

#include "hpcdl/buffer.h"
#include "hpcdl/core/convert.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/dcp/metadata.h"
#include "hpcdl/io/dcp/torch_tensor.h"
#include "hpcdl/io/dcp/zip.h"
#include "hpcdl/io/python_for_tests.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::io {
namespace {

using namespace std::string_literals;

const fs::path kGolden = fs::path(HPCDL_SOURCE_DIR) / "hpcdl/io/golden";

template <class F> std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

const StoredTensor& named(const DcpFolder& folder, const std::string& name) {
  const auto it = std::ranges::find(folder.tensors(), name, &StoredTensor::name);
  require(it != folder.tensors().end(), "test", "no tensor {}", name);
  return *it;
}

std::vector<float> floats(const StoredTensor& t) {
  const OwnedTensor raw({{t.whole.size()}, t.whole.dtype}), wide({{t.whole.size()}, DType::f32});
  read_elements(t, {0, t.whole.size()}, raw.tensor);
  convert_elements(wide.tensor, raw.tensor);
  return {wide.tensor.ptr<float>(), wide.tensor.ptr<float>() + t.whole.size()};
}

/// What golden/make_dcp.py writes.
void expect_golden(const fs::path& path) {
  const DcpFolder folder(path);
  for (const auto& [name, spec, parts] :
       std::vector<std::tuple<std::string, Spec, std::size_t>>{{"model.rows.weight", {{5, 4}, DType::f32}, 2},
                                                               {"model.columns.weight", {{3, 6}, DType::bf16}, 2},
                                                               {"model.same.bias", {{7}, DType::f16}, 1},
                                                               {"other.scalar", {{}, DType::f32}, 1}}) {
    const auto& t = named(folder, name);
    EXPECT_EQ(t.whole, spec) << name;
    EXPECT_EQ(t.parts.size(), parts) << name;
    const auto values = floats(t);
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], static_cast<float>(i) / 2 - 3) << name;
  }
  const auto& turned = named(folder, "model.turned.weight");
  EXPECT_EQ(turned.whole, (Spec{{3, 2}, DType::f64}));
  EXPECT_EQ(floats(turned), (std::vector<float>{-3, -1.5, -2.5, -1, -2, -0.5}));
  EXPECT_EQ(named(folder, "other.counts").whole, (Spec{{4}, DType::i64}));
  const auto& flags = named(folder, "other.flags");
  const OwnedTensor values({{3}, DType::boolean});
  read_elements(flags, {0, 3}, values.tensor);
  EXPECT_FALSE(values.tensor.ptr<bool>()[0]);
  EXPECT_TRUE(values.tensor.ptr<bool>()[1]);
  EXPECT_EQ(folder.others(), std::vector<std::string>{"other.step"});
}

TEST(dcp, reads_what_torch_wrote) { expect_golden(kGolden / "dcp"); }

TEST(dcp, reads_what_torch_writes) {
  const auto python = find_python("torch.distributed.checkpoint, torch.distributed.tensor");
  if (!python) GTEST_SKIP() << "no Python with torch; set HPCDL_PYTHON";
  const TempFolder tmp;
  bool ok = false;
  const auto said = run_python(*python, read_file(kGolden / "make_dcp.py"), (tmp / "d").string(), ok);
  ASSERT_TRUE(ok) << said;
  expect_golden(tmp / "d");
}

TEST(dcp, elements_are_read_in_any_pieces) {
  const DcpFolder folder(kGolden / "dcp");
  for (const auto& t : folder.tensors()) {
    if (!is_float(t.whole.dtype)) continue;
    const auto whole = floats(t);
    for (std::int64_t begin = 0; begin < t.whole.size(); ++begin)
      for (std::int64_t end = begin + 1; end <= t.whole.size(); ++end) {
        const OwnedTensor raw({{end - begin}, t.whole.dtype}), wide({{end - begin}, DType::f32});
        read_elements(t, {begin, end}, raw.tensor);
        convert_elements(wide.tensor, raw.tensor);
        ASSERT_TRUE(
            std::equal(wide.tensor.ptr<float>(), wide.tensor.ptr<float>() + (end - begin), whole.begin() + begin))
            << t.name << " " << begin << " " << end;
      }
  }
}

/// A copy of the golden folder in which one file has been changed.
class Changed {
 public:
  Changed(const std::string& name, const std::function<void(std::string&)>& change) {
    for (const auto& path : list_folder(kGolden / "dcp")) {
      std::string text = read_file(path);
      if (path.filename() == name) change(text);
      write_file_atomic(tmp_ / path.filename().string(), text);
    }
  }
  std::string error() const {
    return error_of([&] { DcpFolder folder(tmp_.path()); });
  }
  fs::path path() const { return tmp_.path(); }

 private:
  TempFolder tmp_;
};

void replace(std::string& text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
}

TEST(dcp, hostile_metadata_is_refused_by_name) {
  const auto error = [](const std::string& from, const std::string& to) {
    return Changed(".metadata", [&](std::string& text) { replace(text, from, to); }).error();
  };
  EXPECT_NE(error("TensorStorageMetadata", "TensorStorageMetadatb")
                .find("it asks for Python's \"torch.distributed.checkpoint.metadata.TensorStorageMetadatb\""),
            std::string::npos);
  EXPECT_NE(error("\x8c\x07"
                  "float32",
                  "\x8c\x07"
                  "float33")
                .find("torch.float33"),
            std::string::npos);
  EXPECT_NE(error("__0_0.distcp", "../_0.distcp").find("does not lie in the folder"), std::string::npos);
  EXPECT_NE(error("__0_0.distcp", "__7_0.distcp").find("__7_0.distcp"), std::string::npos);
  EXPECT_NE(error("storage_data", "storage_dats").find("has no storage_data"), std::string::npos);
  EXPECT_NE(error("model.rows.weight", "model.rowt.weight").find("model"), std::string::npos);
  const auto called = Changed(".metadata", [](std::string& text) {
                        text = "\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R."s;
                      }).error();
  EXPECT_NE(called.find("at byte 17: it asks for Python's \"posix.system\", which is not called here"),
            std::string::npos)
      << called;
}

TEST(dcp, a_missing_or_a_short_file_is_named) {
  const Changed missing(".metadata", [](std::string&) {});
  fs::remove(missing.path() / "__1_0.distcp");
  EXPECT_NE(missing.error().find("__1_0.distcp"), std::string::npos) << missing.error();
  fs::remove(missing.path() / ".metadata");
  EXPECT_NE(missing.error().find("expected a distributed checkpoint of PyTorch"), std::string::npos);
  const Changed cut("__1_0.distcp", [](std::string& text) { text.resize(text.size() / 2); });
  EXPECT_NE(cut.error().find("truncated?"), std::string::npos) << cut.error();
}

/// Calls f(bytes) with copies in which one byte has been changed.
template <class F> void with_damage(const std::string& whole, F f) {
  for (std::size_t at = 0; at < whole.size(); ++at)
    for (const int value : {0, 255, int{'.'}, whole[at] ^ 1}) {
      auto damaged = whole;
      damaged[at] = static_cast<char>(value);
      f(damaged);
    }
}

TEST(dcp, damaged_metadata_is_an_error_or_has_sound_chunks) {
  with_damage(read_file(kGolden / "dcp/.metadata"), [](const std::string& damaged) {
    try {
      for (const auto& t : dcp::parse_metadata(damaged, "x").tensors)
        for (const auto& c : t.chunks) ASSERT_TRUE(c.offset >= 0 && c.bytes >= 0);
    } catch (const Error&) {}
  });
}

TEST(dcp, a_damaged_archive_is_an_error_or_has_a_tensor_within_it) {
  const auto file = read_file(kGolden / "dcp/__0_0.distcp");
  const auto metadata = dcp::parse_metadata(read_file(kGolden / "dcp/.metadata"), "x");
  const auto& chunk = metadata.tensors[0].chunks[0];
  ASSERT_EQ(chunk.file, "__0_0.distcp");
  const auto archive = file.substr(static_cast<std::size_t>(chunk.offset), static_cast<std::size_t>(chunk.bytes));
  with_damage(archive, [](const std::string& damaged) {
    try {
      const View v = dcp::read_torch_tensor(damaged, "x");
      std::int64_t last = 0;
      for (int d = 0; d < v.rank(); ++d) last += (v[d] - 1) * v.strides()[d];
      const auto* begin = static_cast<const char*>(v.data());
      const auto* end = begin + (last + 1) * dtype_bytes(v.dtype());
      ASSERT_TRUE(v.size() == 0 || (begin >= damaged.data() && end <= damaged.data() + damaged.size()));
    } catch (const Error&) {}
  });
}

TEST(dcp, every_truncation_is_an_error) {
  const auto metadata = read_file(kGolden / "dcp/.metadata");
  for (std::size_t n = 0; n < metadata.size(); ++n)
    EXPECT_THROW(dcp::parse_metadata(std::string_view(metadata).substr(0, n), "x"), Error) << n;
  const auto file = read_file(kGolden / "dcp/__0_0.distcp");
  const auto parsed = dcp::parse_metadata(metadata, "x");
  for (const auto& t : parsed.tensors)
    for (const auto& c : t.chunks) {
      if (c.file != "__0_0.distcp") continue;
      const auto archive =
          std::string_view(file).substr(static_cast<std::size_t>(c.offset), static_cast<std::size_t>(c.bytes));
      for (std::size_t n = 0; n < archive.size(); ++n)
        EXPECT_THROW(dcp::read_torch_tensor(archive.substr(0, n), "x"), Error) << n;
    }
}

/// An archive like those of torch.save, with one tensor of four numbers.
std::string archive_of(const std::string& pickled) {
  std::string local, directory;
  const auto le = [](std::uint64_t n, int bytes) {
    std::string s;
    for (int i = 0; i < bytes; ++i, n >>= 8) s += static_cast<char>(n);
    return s;
  };
  for (const auto& [name, bytes] : {std::pair{"a/data.pkl"s, pickled}, {"a/data/0"s, std::string(16, '\0')}}) {
    const auto sizes = le(bytes.size(), 4) + le(bytes.size(), 4);
    directory +=
        "PK\1\2" + le(0, 16 - 4) + le(0, 4) + sizes + le(name.size(), 2) + le(0, 12) + le(local.size(), 4) + name;
    local += "PK\3\4" + le(0, 14) + sizes + le(name.size(), 2) + le(0, 2) + name + bytes;
  }
  return local + directory + "PK\5\6" + le(0, 4) + le(2, 2) + le(2, 2) + le(directory.size(), 4) + le(local.size(), 4) +
         le(0, 2);
}

/// A tensor of `size` numbers with these strides (pickled), from element `first` of its storage.
std::string tensor_of(const std::string& size, const std::string& strides, char first = 0,
                      const std::string& type = "torch\nFloatStorage") {
  return "\x80\x02"
         "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagec"s +
         type +
         "\nX\x01\0\0\0"
         "0X\x03\0\0\0cpuK\x04tQK"s +
         first + size + strides +
         "\x89"
         "ccollections\nOrderedDict\n)RtR.";
}

TEST(dcp, a_tensor_outside_of_its_storage_is_refused) {
  const auto error = [](const std::string& pickled) {
    const auto archive = archive_of(pickled);
    return error_of([&] { dcp::read_torch_tensor(archive, "x"); });
  };
  const std::string four = "K\x04\x85", one = "K\x01\x85", huge = "\x8a\x06\0\0\0\0\0\x01\x85"s,
                    minus = "J\xff\xff\xff\xff\x85";
  EXPECT_EQ(error(tensor_of(four, one)), "");
  EXPECT_NE(error(tensor_of(four, one, 1)).find("does not lie in its storage of 16 bytes"), std::string::npos);
  EXPECT_NE(error(tensor_of(four, "K\x02\x85")).find("does not lie"), std::string::npos);
  EXPECT_NE(error(tensor_of(huge, "K\0\x85"s)).find("does not lie"), std::string::npos);
  EXPECT_NE(error(tensor_of(huge, huge)).find("does not lie"), std::string::npos);
  EXPECT_NE(error(tensor_of(four, minus)).find("expected numbers from 0"), std::string::npos);
  EXPECT_NE(error(tensor_of(four, ")")).find("its strides do not fit its size"), std::string::npos);
  EXPECT_NE(error(tensor_of(four, one, 0, "torch\nComplexFloatStorage")).find("ComplexFloatStorage"),
            std::string::npos);
  EXPECT_NE(error(tensor_of(four, one, 0, "os\nsystem")).find("it asks for Python's \"os.system\""), std::string::npos);
  EXPECT_NE(error("\x80\x02N.").find("one plain tensor"), std::string::npos);
  const auto seven = std::string("(K\x01K\x01K\x01K\x01K\x01K\x01K\x01t");
  EXPECT_NE(error(tensor_of(seven, seven)).find("at most 6 numbers"), std::string::npos);
}

TEST(dcp, archives_of_other_kinds_are_refused) {
  const auto whole = archive_of(tensor_of("K\x04\x85", "K\x01\x85"));
  const auto error = [&](std::size_t at, const std::string& bytes) {
    auto changed = whole;
    changed.replace(at, bytes.size(), bytes);
    return error_of([&] { dcp::read_zip(changed, "x"); });
  };
  EXPECT_EQ(dcp::read_zip(whole, "x").size(), 2u);
  const auto entry = whole.find("PK\1\2"), end = whole.find("PK\5\6");
  EXPECT_NE(error(entry + 10, "\x08").find("is compressed"), std::string::npos);
  EXPECT_NE(error(entry + 8, "\x01").find("is encrypted"), std::string::npos);
  EXPECT_NE(error(entry + 42, "\xff\xff\xff\x7f").find("lies outside"), std::string::npos);
  EXPECT_NE(error(entry + 24, "\xff\xff\xff\xff").find("is missing"), std::string::npos);
  EXPECT_NE(error(end + 10, "\xff\xff").find("more than its directory can hold"), std::string::npos);
  EXPECT_NE(error(end + 16, "\xff\xff\xff\x7f").find("lies outside"), std::string::npos);
  EXPECT_NE(error(end, "xx").find("no end record"), std::string::npos);
}

}  // namespace
}  // namespace hpcdl::io
