#include "hpcdl/io/mapped_faults.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/mapped_file.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::io {
namespace {

struct Ended {
  int code = 0;  // 128 + signal when killed
  std::string said;
};

/// Runs `work` in a separate process that explains such faults.
Ended in_child(const std::function<void()>& work) {
  int ends[2];
  if (::pipe(ends) != 0) return {-1, "no pipe"};
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    explain_mapped_faults(70, []() noexcept { [[maybe_unused]] const auto n = ::write(STDERR_FILENO, "first; ", 7); });
    work();
    ::_exit(0);
  }
  ::close(ends[1]);
  Ended out;
  char block[512];
  for (ssize_t n; (n = ::read(ends[0], block, sizeof block)) > 0;) out.said.append(block, static_cast<std::size_t>(n));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  out.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return out;
}

int touch(const MappedFile& file, std::int64_t at) {
  return static_cast<int>(*static_cast<const volatile std::byte*>(file.data() + at));
}

class MappedFaults : public testing::Test {
 protected:
  MappedFaults() {
    write_file_atomic(file_, std::string(100'000, 'x'));
    write_file_atomic(other_, std::string(50'000, 'y'));
  }
  TempFolder tmp_;
  fs::path file_ = tmp_ / "model-00001-of-00002.safetensors", other_ = tmp_ / "other";
};

TEST_F(MappedFaults, a_file_cut_short_is_named) {
  const auto ended = in_child([&] {
    const MappedFile other(other_);
    MappedFile first(file_);
    const MappedFile moved = std::move(first);
    touch(moved, 99'999);
    fs::resize_file(file_, 4096);
    touch(moved, 10);
    touch(moved, 99'999);
  });
  EXPECT_EQ(ended.code, 70);
  EXPECT_EQ(ended.said, "first; hpcdl: [io] " + file_.string() +
                            ": was cut short while it was in use: it had 100000 bytes and has 4096 now; to change a "
                            "file, write another one and rename it into place\n");
}

TEST_F(MappedFaults, any_thread_may_meet_it_and_one_line_is_said) {
  const auto ended = in_child([&] {
    const MappedFile file(file_);
    fs::resize_file(file_, 0);
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) threads.emplace_back([&] { touch(file, 0); });
  });
  EXPECT_EQ(ended.code, 70);
  EXPECT_EQ(std::count(ended.said.begin(), ended.said.end(), '\n'), 1) << ended.said;
}

TEST_F(MappedFaults, unmapped_files_are_forgotten) {
  const auto ended = in_child([&] {
    for (int i = 0; i < 3000; ++i) const MappedFile once(other_);
    const MappedFile file(file_);
    fs::resize_file(file_, 0);
    touch(file, 50'000);
  });
  EXPECT_EQ(ended.code, 70);
  EXPECT_NE(ended.said.find(file_.string()), std::string::npos) << ended.said;
}

TEST_F(MappedFaults, other_bus_errors_end_the_process_as_before) {
  const auto ended = in_child([&] {
    const MappedFile file(file_);
    ::raise(SIGBUS);
  });
  EXPECT_EQ(ended.code, 128 + SIGBUS);
  EXPECT_EQ(ended.said, "");
}

}  // namespace
}  // namespace hpcdl::io
