#include "hpcdl/io/disk_moves.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/instance.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/ops.h"
#include "hpcdl/program/bytes.h"
#include "hpcdl/program/pages.h"

namespace hpcdl::io {
namespace {

constexpr std::int64_t kPage = ScratchFile::kAlign;

/// Records of softmax over tensors of an odd size, of which every second goes to a file and comes back.
struct Recorded {
  Var x, y;
  Recording recording;
};

Recorded record(const std::shared_ptr<ScratchFile>& file, bool moves) {
  const DiskPlace disk("test file", file);
  const Spec spec{{37, 29}, DType::f32};
  Graph g;
  Recorded r;
  r.x = g.input("x", spec);
  Var h = r.x;
  for (std::int64_t i = 0; i < 9; ++i) {
    h = softmax(h);
    if (i % 2 == 0 || !moves) continue;
    const auto at = i / 2 * ScratchFile::padded(spec.bytes());
    disk.write(g, h.operand(), at, Phase::forward);
    const Var back = g.temporary("back", spec);
    disk.read(g, back.operand(), at, Phase::forward);
    h = back;
  }
  r.y = g.keep(h);
  r.recording = g.finish();
  return r;
}

std::vector<float> run(Recorded r) {
  const Instance exe(std::move(r.recording));
  const Tensor x = exe.tensor(r.x), y = exe.tensor(r.y);
  for (std::int64_t i = 0; i < x.size(); ++i) x.ptr<float>()[i] = static_cast<float>(i * i % 101) / 7;
  Pool pool(1);
  StepParams params;
  Stream s(pool, &params);
  exe.run(s);
  return {y.ptr<float>(), y.ptr<float>() + y.size()};
}

TEST(disk_moves, bring_back_the_same_bits) {
  const TempFolder tmp;
  if (lies_in_memory(tmp.path())) GTEST_SKIP() << "temporary files lie in memory: set TMPDIR to a disk";
  const auto want = run(record(nullptr, false));
  for (const bool direct : {true, false}) {
    const auto file = std::make_shared<ScratchFile>(tmp.path(), 4 * 2 * kPage, direct);
    EXPECT_EQ(run(record(file, true)), want);
    EXPECT_EQ(file->bytes_moved(), disk_bytes(record(file, true).recording.program));
  }
}

TEST(disk_moves, let_every_slot_begin_with_a_page) {
  const auto r = record(nullptr, true);
  ASSERT_TRUE(has_whole_pages(r.recording.program));
  const auto p = plan(r.recording.program);
  for (const auto offset : p.offset) EXPECT_TRUE(offset < 0 || offset % kPageBytes == 0) << offset;
  EXPECT_GE(p.arena_bytes, 2 << 20) << "such a buffer begins with a page";
  EXPECT_FALSE(has_whole_pages(record(nullptr, false).recording.program));
}

TEST(disk_moves, survive_as_bytes) {
  const auto program = record(nullptr, true).recording.program;
  const auto bytes = to_bytes(program);
  EXPECT_EQ(to_bytes(program_of(bytes, "test")), bytes);
}

TEST(disk_moves, of_a_file_that_is_not_bound_are_refused) {
  EXPECT_THROW(Instance(record(nullptr, true).recording), Error);
}

TEST(disk_moves, end_with_the_error_of_the_disk) {
  const TempFolder tmp;
  if (lies_in_memory(tmp.path())) GTEST_SKIP() << "temporary files lie in memory: set TMPDIR to a disk";
  const auto small = std::make_shared<ScratchFile>(tmp.path(), 2 * kPage);  // room for one of four tensors
  EXPECT_THROW(run(record(small, true)), Error);
}

}  // namespace
}  // namespace hpcdl::io
