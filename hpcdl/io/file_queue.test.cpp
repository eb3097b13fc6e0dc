#include "hpcdl/io/file_queue.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <tuple>

#include "hpcdl/buffer.h"
#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::io {
namespace {

constexpr std::int64_t kPage = DirectFile::kAlign;

std::string pattern(std::size_t n) {
  std::string text(n, '\0');
  for (std::size_t i = 0; i < n; ++i) text[i] = static_cast<char>(i * 131 + i / 4096 + i / 1000003);
  return text;
}

using Param = std::tuple<FileQueue::Way, bool>;

class FileQueueTest : public testing::TestWithParam<Param> {
 protected:
  DirectFile file() const { return DirectFile(path_, std::get<1>(GetParam())); }
  static FilePiece piece(const DirectFile& f, std::int64_t offset, std::int64_t bytes, std::byte* to) {
    return {.file = &f, .offset = offset, .bytes = bytes, .memory = to};
  }
  void expect_error(const FilePiece& p, const std::string& part) {
    try {
      queue_.wait(queue_.start({&p, 1}));
      ADD_FAILURE() << "expected an error";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  }

  TempFolder tmp_;
  fs::path path_ = tmp_ / "weights";
  FileQueue queue_{std::get<0>(GetParam())};
};

TEST_P(FileQueueTest, reads_files_of_odd_sizes) {
  for (const std::size_t size : {1UL, 4095UL, 4096UL, 4097UL, (5UL << 20) + 777, 48UL << 20}) {
    const auto text = pattern(size);
    write_file_atomic(path_, text);
    const auto f = file();
    const auto pages = (static_cast<std::int64_t>(size) + kPage - 1) / kPage * kPage;
    const Buffer to(std::max<std::int64_t>(pages, 2 << 20));
    const auto whole = piece(f, 0, pages, to.data());
    queue_.wait(queue_.start({&whole, 1}));
    EXPECT_EQ(std::memcmp(to.data(), text.data(), size), 0) << size;
  }
}

TEST_P(FileQueueTest, many_readings_at_a_time) {
  const auto text = pattern((9 << 20) + 5);
  write_file_atomic(path_, text);
  const auto f = file();
  constexpr std::int64_t kBytes = 40 * kPage, kCount = 200;
  const Buffer to(kBytes * kCount);
  std::vector<FileQueue::Moving> readings;
  const auto offset = [](std::int64_t i) { return i * 11 * kPage; };
  for (std::int64_t i = 0; i < kCount; ++i) {
    const auto p = piece(f, offset(i), kBytes, to.data() + i * kBytes);
    readings.push_back(queue_.start({&p, 1}));
  }
  for (std::int64_t i = kCount - 1; i >= 0; --i) {
    queue_.wait(readings[static_cast<std::size_t>(i)]);
    ASSERT_EQ(std::memcmp(to.data() + i * kBytes, text.data() + offset(i), kBytes), 0) << i;
  }
}

TEST_P(FileQueueTest, writes_what_is_read_later) {
  const TempFolder folder;
  auto f = DirectFile::unnamed(folder.path(), std::get<1>(GetParam()));
  constexpr std::int64_t kBytes = (3 << 20) + 5 * kPage, kCount = 20;
  f.reserve(kBytes * kCount);
  const Buffer from(kBytes * kCount), to(kBytes * kCount);
  const auto text = pattern(static_cast<std::size_t>(from.bytes()));
  std::memcpy(from.data(), text.data(), text.size());
  for (const bool write : {true, false}) {
    std::vector<FileQueue::Moving> list;
    for (std::int64_t i = 0; i < kCount; ++i) {
      auto p = piece(f, i * kBytes, kBytes, (write ? from : to).data() + i * kBytes);
      p.write = write;
      list.push_back(queue_.start({&p, 1}));
    }
    for (const auto& moving : list) queue_.wait(moving);
  }
  EXPECT_EQ(std::memcmp(to.data(), from.data(), text.size()), 0);
}

TEST_P(FileQueueTest, a_write_that_fails_is_named) {
  write_file_atomic(path_, pattern(1 << 20));
  const auto f = file();  // for reading
  const Buffer from(2 << 20);
  auto p = piece(f, 0, kPage, from.data());
  p.write = true;
  expect_error(p, path_.string() + ": cannot write: ");
}

TEST_P(FileQueueTest, nothing_to_read) { queue_.wait(queue_.start({})); }

TEST_P(FileQueueTest, a_file_cut_short_is_named) {
  for (const std::int64_t left : {0, 10'000, 3 << 20}) {
    write_file_atomic(path_, pattern(4 << 20));
    const auto f = file();
    fs::resize_file(path_, static_cast<std::uintmax_t>(left));
    const Buffer to(4 << 20);
    expect_error(piece(f, 0, 4 << 20, to.data()),
                 path_.string() + ": was cut short while it was in use: it had 4194304 bytes and ends at ");
  }
}

TEST_P(FileQueueTest, a_read_that_fails_is_named_and_others_go_on) {
  const auto text = pattern(1 << 20);
  write_file_atomic(path_, text);
  const auto f = file();
  const Buffer to(2 << 20);
  const auto good = piece(f, 0, 1 << 20, to.data());
  const auto reading = queue_.start({&good, 1});
  expect_error(piece(f, 0, kPage, nullptr), path_.string() + ": cannot read: ");
  queue_.wait(reading);
  EXPECT_EQ(std::memcmp(to.data(), text.data(), text.size()), 0);
}

TEST_P(FileQueueTest, ends_with_work_left) {
  constexpr std::int64_t kBytes = 1 << 20;
  write_file_atomic(path_, pattern(kBytes));
  const auto f = file();
  const Buffer to(100 * kBytes);
  FileQueue queue(std::get<0>(GetParam()));
  for (int i = 0; i < 100; ++i) {
    const auto p = piece(f, 0, kBytes, to.data() + i * kBytes);
    queue.start({&p, 1});
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, FileQueueTest,
                         testing::Combine(testing::Values(FileQueue::Way::uring, FileQueue::Way::threads),
                                          testing::Bool()),
                         [](const auto& way) {
                           return std::string(std::get<0>(way.param) == FileQueue::Way::uring ? "uring" : "threads") +
                                  (std::get<1>(way.param) ? "_direct" : "_cached");
                         });

TEST(file_queue, uses_threads_if_told_to) {
  EXPECT_EQ(FileQueue(FileQueue::Way::threads).way(), FileQueue::Way::threads);
}

}  // namespace
}  // namespace hpcdl::io
