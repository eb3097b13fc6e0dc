#include "hpcdl/comm/transport/host.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "hpcdl/comm/transport/shared_file.h"
#include "hpcdl/comm/transport/threads.h"

namespace hpcdl::comm {
namespace {

int memory_file() { return memfd_create("test", MFD_CLOEXEC); }

SharedFile offer(int fd) {
  SharedFile f;
  f.name(fmt::format("/proc/{}/fd/{}", getpid(), fd));
  EXPECT_TRUE(f.identify(fd));
  return f;
}

TEST(host, another_file_with_the_path_of_shared_memory_is_not_opened) {
  const int mine = memory_file(), other = memory_file();
  auto file = offer(mine);
  const int again = file.open();
  EXPECT_GE(again, 0);
  close(again);
  // A path /proc/<process>/fd/<n> of one container as seen in another one.
  file.name(fmt::format("/proc/{}/fd/{}", getpid(), other));
  EXPECT_EQ(file.open(), -1);
  close(mine);
  close(other);
}

int names_of_ours() {
  int n = 0;
  for (const auto& f : std::filesystem::directory_iterator("/dev/shm"))
    n += f.path().filename().string().starts_with(fmt::format("hpcdl-{}-", getpid()));
  return n;
}

/// A rank that should map memory skips the first offer, which it cannot map.
TEST(host, a_rank_that_leaves_does_not_leave_a_name_in_shared_memory) {
  if (!std::filesystem::is_directory("/dev/shm")) GTEST_SKIP() << "this system has no /dev/shm";
  auto t = thread_transports(2);
  const int ranks[] = {0, 1};
  const auto deadline = Clock::now() + std::chrono::seconds(30);
  std::thread first([&] { EXPECT_THROW(share_memory(*t[0], ranks, 7, 100, deadline), Error); });
  {
    const Patience patience;
    Peers peers(*t[1], ranks, 1, 7, patience);
    std::byte offer[sizeof(SharedFile) + 8], no[1]{};
    const auto exchange = [&](auto handle) { peers.wait(handle); };
    exchange(peers.receive(0, offer));
    exchange(peers.send(0, no));
    exchange(peers.receive(0, no));
    exchange(peers.receive(0, offer));  // the second offer has a name
    EXPECT_EQ(names_of_ours(), 1);
  }
  t[1].reset();
  first.join();
  EXPECT_EQ(names_of_ours(), 0);
}

}  // namespace
}  // namespace hpcdl::comm
