#include "hpcdl/io/mapped_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::io {
namespace {

std::string pattern(std::size_t n) {
  std::string text(n, '\0');
  for (std::size_t i = 0; i < n; ++i) text[i] = static_cast<char>(i * 131 + i / 4096);
  return text;
}

std::string_view text_of(const MappedFile& f) {
  return {reinterpret_cast<const char*>(f.data()), static_cast<std::size_t>(f.size())};
}

TEST(mapped_file, holds_the_file) {
  const TempFolder tmp;
  const std::string text = pattern(100'001);
  write_file_atomic(tmp / "a", text);
  MappedFile file(tmp / "a");
  EXPECT_EQ(text_of(file), text);
  const std::byte* where = file.data();
  MappedFile moved = std::move(file);
  EXPECT_EQ(moved.data(), where);
  EXPECT_EQ(file.data(), nullptr);
  EXPECT_EQ(text_of(moved), text);
}

TEST(mapped_file, drop_and_prefetch_keep_the_content) {
  const TempFolder tmp;
  const std::string text = pattern((20 << 20) + 5);
  write_file_atomic(tmp / "a", text);
  const MappedFile file(tmp / "a");
  file.evict();
  file.prefetch().wait();
  EXPECT_GE(file.resident_bytes(), file.size());
  EXPECT_EQ(text_of(file), text);
  file.drop(1, 10);  // no whole page inside
  file.drop(5000, 1 << 20);
  file.drop();
  EXPECT_EQ(text_of(file), text);
  for (const auto& [at, n] :
       {std::pair<std::int64_t, std::int64_t>{-5, 10}, {file.size() + 7, 3}, {3, file.size() * 2}, {9, 0}})
    file.prefetch(at, n).wait();
}

TEST(mapped_file, prefetch_can_be_abandoned_and_outlive_a_move) {
  const TempFolder tmp;
  const std::string text = pattern(32 << 20);
  write_file_atomic(tmp / "a", text);
  MappedFile file(tmp / "a");
  { const Prefetch abandoned = file.prefetch(); }
  Prefetch kept = file.prefetch();
  const MappedFile moved = std::move(file);
  kept.wait();
  EXPECT_EQ(text_of(moved), text);
}

TEST(mapped_file, empty_file) {
  const TempFolder tmp;
  write_file_atomic(tmp / "a", "");
  const MappedFile file(tmp / "a");
  EXPECT_EQ(file.size(), 0);
  EXPECT_EQ(file.resident_bytes(), 0);
  file.prefetch().wait();
  file.drop();
}

TEST(mapped_file, bad_paths_are_errors) {
  const TempFolder tmp;
  EXPECT_THROW(MappedFile(tmp / "missing"), Error);
  EXPECT_THROW(MappedFile(tmp.path()), Error);
  EXPECT_THROW(MappedFile("/dev/null"), Error);
}

}  // namespace
}  // namespace hpcdl::io
