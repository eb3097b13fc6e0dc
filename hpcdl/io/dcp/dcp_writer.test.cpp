// What DcpWriter writes is read by DcpFolder and, where there is one, by torch.

#include "hpcdl/io/dcp/dcp_writer.h"

#include <gtest/gtest.h>

#include <numeric>

#include "hpcdl/core/error.h"
#include "hpcdl/io/dcp/dcp_folder.h"
#include "hpcdl/io/python_for_tests.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::io {
namespace {

const std::vector<NamedSpec> kTensors = {{"a.weight", {{5, 3}, DType::f32}}, {"scalar", {{}, DType::f64}},
                                         {"b", {{70, 2, 2}, DType::bf16}},   {"none", {{0, 4}, DType::f16}},
                                         {"counts", {{300}, DType::i64}},    {"flags", {{7}, DType::boolean}}};

/// Bytes that tell tensors and places apart.
std::vector<std::byte> bytes_of(std::size_t tensor) {
  const auto& spec = kTensors[tensor].spec;
  std::vector<std::byte> bytes(static_cast<std::size_t>(spec.bytes()));
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(spec.dtype == DType::boolean ? i % 2 : (i * 37 + tensor * 11) % 120);
  return bytes;
}

/// In pieces that end anywhere.
void write(const fs::path& folder, std::int64_t most_bytes) {
  make_folder(folder);
  DcpWriter writer(folder, kTensors, most_bytes);
  for (std::size_t t = 0; t < kTensors.size(); ++t) {
    const auto bytes = bytes_of(t);
    const auto dtype = kTensors[t].spec.dtype;
    const std::int64_t n = kTensors[t].spec.size();
    for (std::int64_t at = 0, step = 1; at < n; at += step, step = step % 5 + 1)
      writer.append(View(bytes.data() + at * dtype_bytes(dtype), {{std::min(step, n - at)}, dtype}));
  }
  writer.commit();
}

TEST(dcp_writer, is_read_as_it_was_written) {
  for (const std::int64_t most : {1, 40, 1 << 20}) {
    const TempFolder tmp;
    write(tmp / "d", most);
    const DcpFolder folder(tmp / "d");
    ASSERT_EQ(folder.tensors().size(), kTensors.size());
    for (std::size_t i = 0; i < kTensors.size(); ++i) {
      const auto& t = folder.tensors()[i];
      EXPECT_EQ(t.name, kTensors[i].name);
      ASSERT_EQ(t.whole, kTensors[i].spec);
      EXPECT_EQ(t.parts.size() > 1, most < t.whole.bytes() && t.whole.shape.rank() > 0) << t.name << " " << most;
      std::vector<std::byte> read(static_cast<std::size_t>(t.whole.bytes()));
      read_elements(t, {0, t.whole.size()}, Tensor(read.data(), {{t.whole.size()}, t.whole.dtype}));
      EXPECT_EQ(read, bytes_of(i)) << t.name << " " << most;
    }
    write(tmp / "again", most);
    for (const char* file : {".metadata", "__0_0.distcp"})
      EXPECT_TRUE(read_file(tmp.path() / "d" / file) == read_file(tmp.path() / "again" / file)) << "bytes repeat";
  }
}

TEST(dcp_writer, refuses_what_is_not_complete_or_too_much) {
  const TempFolder tmp;
  const std::vector<float> values(8);
  DcpWriter writer(tmp.path(), {{"a", {{4}, DType::f32}}});
  writer.append(View(values.data(), {{3}, DType::f32}));
  EXPECT_THROW(writer.commit(), Error);
  EXPECT_THROW(writer.append(View(values.data(), {{1}, DType::i32})), Error);
  EXPECT_THROW(writer.append(View(values.data(), {{2}, DType::f32})), Error);
  EXPECT_FALSE(fs::exists(tmp / ".metadata"));
  EXPECT_THROW(DcpWriter(tmp.path(), {{"a", {{4}, DType::f8_e4m3}}}), Error);
}

TEST(dcp_writer, torch_loads_it) {
  const auto python = find_python("torch.distributed.checkpoint");
  if (!python) GTEST_SKIP() << "no Python with torch; set HPCDL_PYTHON";
  const TempFolder tmp;
  for (const std::int64_t most : {40, 1 << 20}) {
    const auto folder = tmp / std::to_string(most);
    write(folder, most);
    bool ok = false;
    const auto said = run_python(*python, R"(
import sys, torch, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
want = [("a.weight", (5, 3), torch.float32), ("scalar", (), torch.float64), ("b", (70, 2, 2), torch.bfloat16),
        ("none", (0, 4), torch.float16), ("counts", (300,), torch.int64), ("flags", (7,), torch.bool)]
state = {name: torch.zeros(shape, dtype=dtype) for name, shape, dtype in want}
dcp.load(state, checkpoint_id=sys.argv[1])
dcp_to_torch_save(sys.argv[1], sys.argv[1] + ".pt")
whole = torch.load(sys.argv[1] + ".pt")
assert list(whole) == [name for name, _, _ in want], list(whole)
for t, (name, shape, dtype) in enumerate(want):
    n = state[name].numel() * state[name].element_size()
    expected = [i % 2 if dtype == torch.bool else (i * 37 + t * 11) % 120 for i in range(n)]
    for x in (state[name], whole[name]):
        assert x.shape == shape and x.dtype == dtype, name
        assert x.reshape(-1).view(torch.uint8).tolist() == expected, name
)",
                                 folder.string(), ok);
    ASSERT_TRUE(ok) << said;
  }
}

}  // namespace
}  // namespace hpcdl::io
