#include "hpcdl/io/scratch_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <string>

#include "hpcdl/buffer.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::io {
namespace {

constexpr std::int64_t kPage = ScratchFile::kAlign;
constexpr std::int64_t kBytes = 5 * (1 << 20) + 3 * kPage;  // several requests, the last of which is short

std::string error_of(const fs::path& folder, std::int64_t bytes = kPage) {
  try {
    const ScratchFile file(folder, bytes);
    return "fine";
  } catch (const Error& e) {
    return e.what();
  }
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

void fill(std::byte* at, std::int64_t bytes, int seed) {
  for (std::int64_t i = 0; i < bytes; ++i) at[i] = static_cast<std::byte>(i * 131 + i / 4096 + seed);
}

class ScratchFileTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (lies_in_memory(tmp_.path())) GTEST_SKIP() << "temporary files lie in memory: set TMPDIR to a disk";
    file_.emplace(tmp_.path(), kBytes, GetParam());
  }
  void move(ScratchFile::Way way, std::int64_t at, std::byte* memory, std::int64_t bytes) {
    file_->wait(file_->start(way, at, memory, bytes));
  }
  TempFolder tmp_;
  std::optional<ScratchFile> file_;
};

TEST_P(ScratchFileTest, holds_zeros_and_then_what_was_written) {
  const Buffer out(8 << 20), in(8 << 20);
  fill(in.data(), kBytes, 1);
  move(ScratchFile::Way::read, 0, in.data(), kBytes);
  EXPECT_EQ(std::memcmp(in.data(), out.data(), kBytes), 0) << "expected zeros";
  for (int round = 0; round < 3; ++round) {
    fill(out.data(), kBytes, round);
    move(ScratchFile::Way::write, 0, out.data(), kBytes);
    move(ScratchFile::Way::read, 0, in.data(), kBytes);
    EXPECT_EQ(std::memcmp(in.data(), out.data(), kBytes), 0) << round;
    EXPECT_EQ(std::memcmp(file_->data(), out.data(), kBytes), 0) << round << ", mapped";
  }
  EXPECT_EQ(file_->bytes_moved(), 7 * kBytes);
  EXPECT_GE(file_->seconds_waited(), 0);
}

TEST_P(ScratchFileTest, what_was_written_through_memory_is_read) {
  const Buffer out(8 << 20), in(8 << 20);
  for (int round = 0; round < 3; ++round) {
    fill(file_->data(), kBytes, round), fill(out.data(), kBytes, round);
    file_->settle();
    move(ScratchFile::Way::read, 2 * kPage, in.data(), kBytes - 2 * kPage);
    EXPECT_EQ(std::memcmp(in.data(), out.data() + 2 * kPage, kBytes - 2 * kPage), 0) << round;
  }
}

TEST_P(ScratchFileTest, moves_of_the_same_bytes_keep_their_order) {
  const Buffer out(8 << 20), in(8 << 20);
  for (int round = 1; round < 6; ++round) {
    fill(out.data(), kBytes, round);
    const auto written = file_->start(ScratchFile::Way::write, 0, out.data(), kBytes);
    const auto read = file_->start(ScratchFile::Way::read, kPage, in.data(), kBytes - kPage);
    file_->wait(read), file_->wait(written);
    EXPECT_EQ(std::memcmp(in.data(), out.data() + kPage, kBytes - kPage), 0) << round;
  }
}

TEST_P(ScratchFileTest, has_no_name_and_has_its_room) {
  EXPECT_TRUE(fs::is_empty(tmp_.path()));
  EXPECT_EQ(file_->bytes(), kBytes);
}

TEST_P(ScratchFileTest, moves_whole_pages_of_the_file_alone) {
  const Buffer memory(8 << 20);
  for (const auto& [at, bytes] :
       {std::pair{std::int64_t{1}, kPage}, {kPage, kPage - 1}, {-kPage, kPage}, {0, kBytes + kPage}})
    EXPECT_THROW(file_->start(ScratchFile::Way::read, at, memory.data(), bytes), Error) << at << " " << bytes;
}

INSTANTIATE_TEST_SUITE_P(Ways, ScratchFileTest, testing::Bool(),
                         [](const auto& direct) { return direct.param ? "direct" : "cached"; });

TEST(scratch_file, a_folder_that_cannot_hold_it_is_refused_with_the_reason) {
  const TempFolder tmp;
  if (lies_in_memory(tmp.path())) GTEST_SKIP() << "temporary files lie in memory: set TMPDIR to a disk";
  EXPECT_EQ(error_of(tmp.path()), "fine");
  EXPECT_TRUE(contains(error_of(tmp / "none"), "expected a folder on a disk, found nothing: make it"));
  write_file_atomic(tmp / "file", "x");
  EXPECT_TRUE(contains(error_of(tmp / "file"), "expected a folder on a disk, found a file"));
  const auto huge = error_of(tmp.path(), std::int64_t{1} << 55);
  EXPECT_TRUE(contains(huge, "found ") && contains(huge, " free: free ")) << huge;
  fs::remove(tmp / "file");
  EXPECT_TRUE(fs::is_empty(tmp.path()));
}

TEST(scratch_file, a_folder_in_memory_is_refused) {
  if (!lies_in_memory("/dev/shm")) GTEST_SKIP() << "this system has no folder in memory";
  const auto error = error_of("/dev/shm");
  EXPECT_TRUE(contains(error, "found one in memory (tmpfs), which would save none")) << error;
}

TEST(scratch_file, a_folder_that_is_read_only_is_refused) {
  const TempFolder tmp;
  if (lies_in_memory(tmp.path()) || ::geteuid() == 0) GTEST_SKIP() << "the root user may write everywhere";
  ::chmod(tmp.path().c_str(), 0500);
  EXPECT_TRUE(contains(error_of(tmp.path()), "cannot make files in"));
  ::chmod(tmp.path().c_str(), 0700);
}

}  // namespace
}  // namespace hpcdl::io
