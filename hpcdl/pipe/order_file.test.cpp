#include "hpcdl/pipe/order_file.h"

#include <gtest/gtest.h>

#include "hpcdl/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/pipe/every_shape_for_tests.h"

namespace hpcdl::pipe {
namespace {

TEST(order_file, golden) {
  const auto s = read_order(HPCDL_SOURCE_DIR "/hpcdl/pipe/golden/order.csv");
  EXPECT_EQ(s.ranks(), 3);
  EXPECT_EQ(s.micros, 4);
  EXPECT_EQ(order_text(s), order_text(zero_bubble({3, 1, 4})));
}

TEST(order_file, reads_what_it_writes) {
  for_every_schedule(5, 3, 7, [](const ScheduleKind& kind, const PipeShape& shape) {
    const auto s = make_schedule(kind, shape);
    if (s.on_host) return;  // its stages have no rank
    const auto again = parse_order(order_text(s), "test");
    EXPECT_EQ(again.of_rank, s.of_rank);
    EXPECT_EQ(again.forward_rank, s.forward_rank);
    EXPECT_EQ(again.backward_rank, s.backward_rank);
    EXPECT_EQ(again.micros, s.micros);
  });
}

TEST(order_file, takes_blanks_comments_and_windows_lines) {
  const auto s = parse_order("# order\r\n  0F0 ,, 0B0 # both\r\n\r\n\t1F0\t1B0", "test");
  EXPECT_EQ(order_text(s), "0F0,0B0\n1F0,1B0\n");
}

void expect_refused(std::string_view text, std::string_view words) {
  try {
    parse_order(text, "order.csv");
    FAIL() << text;
  } catch (const UsageError& e) {
    EXPECT_NE(std::string_view(e.what()).find(words), std::string_view::npos) << e.what();
  }
}

TEST(order_file, refuses_hostile_input) {
  for (const char* word : {"F0", "0F", "0X0", "0f0", "-1F0", "0F-1", "0F0x", "99999999999F0", "0F99999999999",
                           "16384F0", "0F4096", "0SEND_F0", "0 F 0", "0.F0", "\xff"})
    expect_refused(std::string("0F0,0B0\n1F0,") + word, "order.csv, line 2: expected an action such as 1F0");
  expect_refused("", "found none");
  expect_refused("# nothing\n,,,\n", "found none");
  expect_refused("0F0,0B0\n2F0,2B0", "no rank computes the forward of stage 1");
  expect_refused("0B0", "no rank computes the forward of stage 0");
  std::string many;
  for (int rank = 0; rank <= kMostRanks; ++rank) many += std::to_string(rank) + "F0\n";
  expect_refused(many, "line 257: expected one line for each of at most 256 ranks");
  std::string wide;
  for (int stage = 0; stage < 300; ++stage) wide += std::to_string(stage) + "F4095 ";
  expect_refused(wide, "too many");
  io::TempFolder folder;
  EXPECT_THROW(read_order(folder / "none"), Error);
}

}  // namespace
}  // namespace hpcdl::pipe
