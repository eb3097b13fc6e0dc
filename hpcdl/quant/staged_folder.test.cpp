#include "hpcdl/quant/staged_folder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::quant {
namespace {

namespace fs = io::fs;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& path : io::list_folder(folder)) names.push_back(path.filename().string());
  return names;
}

void write_model(const StagedFolder& folder, const std::string& text) {
  io::write_file_atomic(folder.path() / "model.safetensors", text);
}

/// A process in the middle of writing `target`, with one file whole and one begun.
class Writer {
 public:
  explicit Writer(const fs::path& target) {
    int ends[2];
    require(pipe(ends) == 0, "test", "no pipe");
    pid_ = fork();
    if (pid_ == 0) {
      const StagedFolder folder(target);
      write_model(folder, "killed");
      const io::AtomicFile half(folder.path() / "tokenizer.json");
      [[maybe_unused]] const auto n = ::write(ends[1], "x", 1);
      for (;;) pause();
    }
    char begun = 0;
    require(::read(ends[0], &begun, 1) == 1, "test", "the writer has ended");
    ::close(ends[0]), ::close(ends[1]);
  }
  ~Writer() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_ = 0;
};

TEST(staged_folder, is_whole_or_absent) {
  const io::TempFolder tmp;
  { write_model(StagedFolder(tmp / "new/out"), "abandoned"); }
  EXPECT_EQ(names_in(tmp / "new"), std::vector<std::string>{});
  for (const char* text : {"one", "two"}) {
    StagedFolder folder(tmp / "new/out/");
    write_model(folder, text);
    folder.commit();
    EXPECT_EQ(io::read_file(tmp / "new/out/model.safetensors"), text);
  }
  EXPECT_EQ(names_in(tmp / "new"), std::vector<std::string>{"out"});
}

TEST(staged_folder, remains_of_a_killed_writer_are_removed) {
  const io::TempFolder tmp;
  { const Writer killed(tmp / "out"); }
  EXPECT_GT(names_in(tmp.path()).size(), 0u);
  // Folders with similar names that do not belong to this output.
  for (const char* other : {".tmp-out-1", ".tmp-out2", ".tmp-other"}) fs::create_directory(tmp / other);
  StagedFolder folder(tmp / "out");
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{});
  write_model(folder, "whole");
  folder.commit();
  EXPECT_EQ(names_in(tmp / "out"), std::vector<std::string>{"model.safetensors"});
}

TEST(staged_folder, nothing_else_is_removed) {
  const io::TempFolder tmp;
  for (const char* name : {".tmp-out", ".tmp-out-1", ".tmp-out2"}) {
    fs::create_directory(tmp / name);
    io::write_file_atomic(tmp / name / "thesis.tex", "x");
  }
  const auto before = names_in(tmp.path());
  EXPECT_THROW(StagedFolder(tmp / "out"), Error);
  EXPECT_EQ(names_in(tmp.path()), before);
  fs::remove_all(tmp / ".tmp-out");
  { const StagedFolder folder(tmp / "out"); }
  EXPECT_EQ(names_in(tmp.path()), (std::vector<std::string>{".tmp-out-1", ".tmp-out2"}));
  EXPECT_EQ(names_in(tmp / ".tmp-out2"), std::vector<std::string>{"thesis.tex"});
}

TEST(staged_folder, one_writer_at_a_time) {
  const io::TempFolder tmp;
  {
    const Writer alive(tmp / "out");
    const auto before = io::list_folder(tmp.path(), true);
    EXPECT_THROW(StagedFolder(tmp / "out"), Error);
    EXPECT_EQ(io::list_folder(tmp.path(), true), before);
    const StagedFolder other(tmp / "other");
  }
  { const StagedFolder folder(tmp / "out"); }
  EXPECT_EQ(names_in(tmp.path()), std::vector<std::string>{});
}

TEST(staged_folder, a_folder_with_other_things_is_not_replaced) {
  const io::TempFolder tmp;
  fs::create_directory(tmp / "out");
  io::write_file_atomic(tmp / "out/thesis.tex", "x");
  EXPECT_THROW(StagedFolder(tmp / "out"), Error);
  EXPECT_EQ(names_in(tmp.path()), std::vector<std::string>{"out"});
}

}  // namespace
}  // namespace hpcdl::quant
