#include "hpcdl/core/unfinished.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "hpcdl/io/temp_folder.h"

namespace hpcdl {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& path) { std::ofstream(path) << "x"; }

/// In a separate process, because the list of files to remove is permanent.
void in_child(const std::function<void()>& body) {
  const pid_t pid = fork();
  if (pid == 0) body(), _exit(0);
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  ASSERT_EQ(status, 0);
}

TEST(unfinished, listed_files_are_removed_and_nothing_else) {
  const io::TempFolder tmp;
  in_child([&] {
    for (const char* name : {"begun", "finished", "other"}) write(tmp / name);
    for (const char* name : {"folder", "folder/a", "folder/a/b", "kept"}) fs::create_directory(tmp / name);
    for (int i = 0; i < 300; ++i) write(tmp / "folder/a" / ("file with a long name " + std::to_string(i)));
    write(tmp / "kept/file");
    fs::create_directory_symlink(tmp / "kept", tmp / "folder/link");
    const Unfinished begun(tmp / "begun"), folder(tmp / "folder"), gone(tmp / "gone");
    { const Unfinished finished(tmp / "finished"); }
    Unfinished moved = Unfinished(tmp / "finished");
    moved = Unfinished();
    remove_unfinished();
  });
  EXPECT_FALSE(fs::exists(tmp / "begun"));
  EXPECT_FALSE(fs::exists(tmp / "folder"));
  for (const char* name : {"finished", "other", "kept/file"}) EXPECT_TRUE(fs::exists(tmp / name)) << name;
}

TEST(unfinished, a_relative_path_refers_to_the_folder_in_which_it_was_listed) {
  const io::TempFolder tmp;
  in_child([&] {
    fs::current_path(tmp.path());
    write("begun");
    const Unfinished begun("begun");
    fs::create_directory("elsewhere");
    fs::current_path("elsewhere");
    write("begun");
    remove_unfinished();
  });
  EXPECT_FALSE(fs::exists(tmp / "begun"));
  EXPECT_TRUE(fs::exists(tmp / "elsewhere/begun"));
}

/// A signal between adding to the list and creating the file.
TEST(unfinished, files_that_another_thread_is_creating_are_removed_too) {
  const io::TempFolder tmp;
  in_child([&] {
    std::atomic<bool> listed{false};
    std::thread([&] {
      Unfinished begun(tmp / "begun");
      listed = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      write(tmp / "begun");
      begun.created();
      for (;;) pause();
    }).detach();
    while (!listed) std::this_thread::yield();
    remove_unfinished();
    _exit(0);
  });
  EXPECT_FALSE(fs::exists(tmp / "begun"));
}

TEST(unfinished, a_file_that_another_thread_has_renamed_stays_whole) {
  const io::TempFolder tmp;
  in_child([&] {
    std::atomic<bool> finishing{false};
    std::thread([&] {
      Unfinished begun(tmp / "begun");
      fs::create_directory(tmp / "begun");
      begun.created();
      write(tmp / "begun/file");
      begun.finishing();
      finishing = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      fs::rename(tmp / "begun", tmp / "finished");
      begun = {};
      for (;;) pause();
    }).detach();
    while (!finishing) std::this_thread::yield();
    remove_unfinished();
    _exit(0);
  });
  EXPECT_TRUE(fs::exists(tmp / "finished/file"));
  EXPECT_FALSE(fs::exists(tmp / "begun"));
}

TEST(unfinished, nothing_begins_once_the_end_has_begun) {
  const io::TempFolder tmp;
  in_child([&] {
    remove_unfinished();
    std::thread([&] {
      const Unfinished late(tmp / "late");
      write(tmp / "late");
    }).detach();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    _exit(0);
  });
  EXPECT_FALSE(fs::exists(tmp / "late"));
}

TEST(unfinished, more_than_the_list_holds_do_no_harm) {
  const io::TempFolder tmp;
  std::vector<Unfinished> many;
  for (int i = 0; i < 1000; ++i) many.emplace_back(tmp / std::to_string(i));
  many.clear();
  in_child([&] {
    write(tmp / "begun");
    const Unfinished begun(tmp / "begun");
    remove_unfinished();
  });
  EXPECT_FALSE(fs::exists(tmp / "begun"));
}

}  // namespace
}  // namespace hpcdl
