#include "hpcdl/io/atomic_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <span>

#include "hpcdl/core/error.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::io {
namespace {

int files_in(const fs::path& folder) {
  return static_cast<int>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(atomic_file, commit_replaces_and_abandon_leaves_the_old_one) {
  const TempFolder tmp;
  write_file_atomic(tmp / "a", "old");
  {
    AtomicFile file(tmp / "a");
    file.append("half of a new");
  }
  EXPECT_EQ(read_file(tmp / "a"), "old");
  write_file_atomic(tmp / "a", "new");
  EXPECT_EQ(read_file(tmp / "a"), "new");
  EXPECT_EQ(files_in(tmp.path()), 1);
}

TEST(atomic_file, writes_at_offsets_in_any_order) {
  const TempFolder tmp;
  AtomicFile file(tmp / "a");
  file.reserve(6);
  file.write_at(3, std::as_bytes(std::span("def", 3)));
  file.write_at(0, std::as_bytes(std::span("abc", 3)));
  EXPECT_EQ(file.size(), 6);
  file.commit();
  EXPECT_EQ(read_file(tmp / "a"), "abcdef");
}

TEST(atomic_file, reuses_a_leftover_and_refuses_a_second_writer) {
  const TempFolder tmp;
  { std::unique_ptr<FILE, int (*)(FILE*)>(fopen((tmp / ".tmp-a").c_str(), "w"), fclose); }
  AtomicFile first(tmp / "a");
  EXPECT_THROW(AtomicFile second(tmp / "a"), Error);
  first.append("x");
  first.commit();
  EXPECT_EQ(read_file(tmp / "a"), "x");
  EXPECT_EQ(files_in(tmp.path()), 1);
}

TEST(atomic_file, writes_the_target_of_a_link) {
  const TempFolder tmp;
  write_file_atomic(tmp / "a", "old");
  fs::create_symlink("a", tmp / "link");
  write_file_atomic(tmp / "link", "new");
  EXPECT_TRUE(fs::is_symlink(tmp / "link"));
  EXPECT_EQ(read_file(tmp / "a"), "new");
}

// As root, a rename would replace /dev/null by a file, for every program of the machine. A pipe is used instead.
TEST(atomic_file, devices_and_pipes_are_not_replaced) {
  const TempFolder tmp;
  const fs::path pipe = tmp / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const Fd reader(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK));
  write_file_atomic(pipe, "x");
  EXPECT_TRUE(fs::is_fifo(pipe));
  char found = 0;
  EXPECT_EQ(::read(reader.get(), &found, 1), 1);
  EXPECT_EQ(found, 'x');
  fs::create_symlink("/dev/null", tmp / "null");
  write_file_atomic(tmp / "null", "x");
  EXPECT_TRUE(fs::is_symlink(tmp / "null"));
  EXPECT_THROW(AtomicFile folder(tmp.path()), Error);
  EXPECT_EQ(files_in(tmp.path()), 2);
}

// The limit on file size simulates a full disk: the same write(2) fails at the same place.
TEST(atomic_file, a_failing_write_leaves_nothing) {
  const TempFolder tmp;
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(3);
    try {
      write_file_atomic(tmp / "a", std::string(10'000, 'x'));
    } catch (const Error& e) {
      _exit(std::string_view(e.what()).find("ulimit -f") != std::string_view::npos ? 0 : 4);
    }
    _exit(5);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(files_in(tmp.path()), 0);
}

TEST(atomic_file, no_permission_is_a_clear_error) {
  const TempFolder tmp;
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && setuid(65534) != 0) _exit(3);
    if (chmod(tmp.path().c_str(), 0500) != 0 && errno != EPERM) _exit(3);  // EPERM: another user's folder anyway
    try {
      write_file_atomic(tmp / "a", "x");
    } catch (const Error& e) {
      _exit(std::string_view(e.what()).find("check the permissions") != std::string_view::npos ? 0 : 4);
    }
    _exit(5);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  fs::permissions(tmp.path(), fs::perms::owner_all);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(files_in(tmp.path()), 0);
}

/// Like /dev/stdout if it is a pipe.
TEST(atomic_file, a_pipe_gets_the_bytes_in_order) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const Fd out(ends[0]), in(ends[1]);
  AtomicFile file("/dev/fd/" + std::to_string(in.get()));
  file.append("one ");
  file.write_at(4, std::as_bytes(std::span("two", 3)));
  EXPECT_THROW(file.write_at(0, std::as_bytes(std::span("x", 1))), Error);
  file.commit();
  char found[16] = "";
  EXPECT_EQ(::read(out.get(), found, sizeof found), 7);
  EXPECT_STREQ(found, "one two");
}

TEST(make_folder, says_where_a_link_leads_nowhere) {
  const TempFolder tmp;
  fs::create_symlink("nowhere", tmp / "link");
  try {
    make_folder(tmp / "link");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string_view(e.what()).find("link: expected a folder, found a symbolic link to nothing"),
              std::string_view::npos)
        << e.what();
  }
}

TEST(read_file, refuses_files_that_are_too_large) {
  const TempFolder tmp;
  write_file_atomic(tmp / "a", "12345");
  EXPECT_EQ(read_file(tmp / "a", 5), "12345");
  EXPECT_THROW(read_file(tmp / "a", 4), Error);
}

}  // namespace
}  // namespace hpcdl::io
