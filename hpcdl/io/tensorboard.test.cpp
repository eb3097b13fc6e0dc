#include "hpcdl/io/tensorboard.h"

#include <gtest/gtest.h>

#include <cstring>

#include "hpcdl/io/crc32c.h"
#include "hpcdl/io/python_for_tests.h"

namespace hpcdl::io {
namespace {

template <class T> T read_at(const std::string& text, std::size_t at) {
  T v{};
  std::memcpy(&v, text.data() + at, sizeof(T));
  return v;
}

/// The payloads of a file, with both checksums of each record checked by the rule of the format.
std::vector<std::string> records_of(const fs::path& path) {
  const auto mask = [](std::uint32_t c) { return ((c >> 15) | (c << 17)) + 0xa282ead8u; };
  const std::string text = read_file(path);
  std::vector<std::string> out;
  for (std::size_t at = 0; at < text.size();) {
    const auto n = read_at<std::uint64_t>(text, at);
    EXPECT_EQ(read_at<std::uint32_t>(text, at + 8), mask(crc32c(text.substr(at, 8))));
    out.push_back(text.substr(at + 12, n));
    EXPECT_EQ(read_at<std::uint32_t>(text, at + 12 + n), mask(crc32c(out.back())));
    at += 16 + n;
  }
  return out;
}

TEST(tensorboard, record_of_known_bytes) {
  // crc32c of the length word (5 as u64) and of "hello" by the table, masked by hand as above.
  const std::string record = tensorboard_record("hello");
  ASSERT_EQ(record.size(), 8u + 4 + 5 + 4);
  EXPECT_EQ(read_at<std::uint64_t>(record, 0), 5u);
  EXPECT_EQ(crc32c("hello"), 0x9A71BB4Cu);
  EXPECT_EQ(read_at<std::uint32_t>(record, 17), ((0x9A71BB4Cu >> 15) | (0x9A71BB4Cu << 17)) + 0xa282ead8u);
}

TEST(tensorboard, events_hold_their_bytes) {
  const TempFolder tmp;
  fs::path path;
  {
    TensorBoardWriter writer(tmp.path(), 41);
    path = writer.path();
    EXPECT_TRUE(path.filename().string().starts_with("events.out.tfevents."));
    writer.scalar("loss", 1.5f, 300);
    writer.text("sample", "hi", 2);
  }
  const auto records = records_of(path);
  ASSERT_EQ(records.size(), 4u);
  // 1 wall_time: key 0x09 and 8 bytes; 2 step: key 0x10 and a varint.
  EXPECT_EQ(records[0][0], 0x09);
  EXPECT_EQ(records[0].substr(9), std::string("\x10\x00\x1a\x0d", 4) + "brain.Event:2");
  EXPECT_EQ(records[1].substr(9), "\x10\x2a\x3a\x02\x08\x01");
  EXPECT_EQ(records[2].substr(9), std::string("\x10\xac\x02\x2a\x0d\x0a\x0b\x0a\x04loss\x15\x00\x00\xc0\x3f", 18));
  const auto wall = read_at<double>(records[2], 1);
  EXPECT_NEAR(wall, static_cast<double>(time(nullptr)), 100.0) << "seconds since 1970";
}

TEST(tensorboard, two_writers_get_two_files) {
  const TempFolder tmp;
  const TensorBoardWriter a(tmp.path()), b(tmp.path());
  EXPECT_NE(a.path(), b.path());
}

TEST(tensorboard, the_original_package_reads_it) {
  const auto python = find_python("tensorboard.backend.event_processing.event_accumulator");
  if (!python) GTEST_SKIP() << "no Python with tensorboard; set HPCDL_PYTHON";
  const TempFolder tmp;
  {
    TensorBoardWriter writer(tmp.path());
    for (int step = 1; step <= 9; ++step) writer.scalar("throughput(tps)", static_cast<float>(step) / 4, step);
    writer.text("sample", "Once *upon* a caf\u00e9", 5);
  }
  {
    TensorBoardWriter writer(tmp.path(), 6);  // steps 7 to 9 are repeated
    for (int step = 7; step <= 8; ++step) writer.scalar("throughput(tps)", 100.0f + static_cast<float>(step), step);
  }
  const std::string script =
      "import sys\nfrom tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
      "a = EventAccumulator(sys.argv[1]); a.Reload()\n"
      "print('scalars', [(e.step, e.value) for e in a.Scalars('throughput(tps)')])\n"
      "t = a.Tensors('sample'); print('text', t[0].step, t[0].tensor_proto.string_val[0].decode())\n"
      "print('plugin', a.SummaryMetadata('sample').plugin_data.plugin_name)\n";
  bool ok = false;
  const std::string out = run_python(*python, script, tmp.path().string(), ok);
  ASSERT_TRUE(ok) << out;
  EXPECT_NE(out.find("scalars [(1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0), (5, 1.25), (6, 1.5), (7, 107.0), (8, 108.0)]"),
            std::string::npos)
      << out;
  EXPECT_NE(out.find("text 5 Once *upon* a caf\u00e9"), std::string::npos) << out;
  EXPECT_NE(out.find("plugin text"), std::string::npos) << out;
}

}  // namespace
}  // namespace hpcdl::io
