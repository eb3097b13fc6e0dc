#include "hpcdl/core/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace hpcdl {
namespace {

int width_of(std::string_view text) {
  int n = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '\x1b') at = text.find('m', at);
    else n += (static_cast<unsigned char>(text[at]) & 0xC0) != 0x80;
  }
  return n;
}

Bar training(double done = 0.4213) {
  return {.done = done,
          .facts = {{"step 4213/10000", "4213/10000"},
                    {"loss 3.2156", "loss 3.216"},
                    {"12.30K tok/s", "12.3K/s"},
                    {"lr 1.00e-03"},
                    {"norm 0.71"}},
          .needed = 3,
          .seconds_left = 3725};
}

bool holds(const std::string& line, std::string_view part) { return line.find(part) != std::string::npos; }

TEST(bar, fits_any_width_and_says_what_is_needed_from_40_columns_on) {
  for (const bool unicode : {false, true})
    for (const bool colour : {false, true})
      for (int columns = 20; columns <= 240; ++columns) {
        const auto line = bar_line(training(), {.columns = columns, .unicode = unicode, .colour = colour});
        EXPECT_LT(width_of(line), columns) << line;
        EXPECT_EQ(line.find('\n'), std::string::npos);
        if (columns < 40) continue;
        for (const char* part : {"4213/10000", "loss 3.21", "12.3"}) EXPECT_TRUE(holds(line, part)) << columns << line;
        EXPECT_TRUE(holds(line, "1h02m") || holds(line, "1h 02m left")) << columns << ": " << line;
      }
}

TEST(bar, has_cells_and_more_words_where_there_is_room) {
  const auto at = [](int columns) { return bar_line(training(), {.columns = columns}); };
  EXPECT_EQ(at(40), "4213/10000 loss 3.216 12.3K/s 1h02m");
  EXPECT_FALSE(holds(at(60), "["));
  EXPECT_TRUE(holds(at(80), "42% [===")) << at(80);
  EXPECT_FALSE(holds(at(80), "norm"));
  EXPECT_TRUE(holds(at(132), "lr 1.00e-03  norm 0.71  1h 02m left")) << at(132);
  const auto cells = [&](int columns) {
    const auto line = at(columns);
    return std::count(line.begin(), line.end(), '=');
  };
  EXPECT_LT(cells(80), cells(200));
}

TEST(bar, cells_tell_the_share) {
  const auto full = [](double done) {
    const auto line = bar_line(training(done), {.columns = 200});
    return static_cast<double>(std::count(line.begin(), line.end(), '=')) /
           static_cast<double>(line.find(']') - line.find('[') - 1);
  };
  EXPECT_EQ(full(0), 0);
  EXPECT_NEAR(full(0.5), 0.5, 0.03);
  EXPECT_EQ(full(1), 1);
  EXPECT_EQ(full(1.7), 1) << "at most all";
}

TEST(bar, colours_change_no_word) {
  auto coloured = bar_line(training(), {.columns = 80, .unicode = true, .colour = true});
  for (std::size_t at; (at = coloured.find('\x1b')) != std::string::npos;)
    coloured.erase(at, coloured.find('m', at) - at + 1);
  EXPECT_EQ(width_of(coloured), width_of(bar_line(training(), {.columns = 80, .unicode = true})));
}

TEST(bar, the_name_comes_first_and_an_unknown_share_has_no_cells) {
  const Bar bar{.what = "reading", .facts = {{"3 s"}}, .needed = 1};
  EXPECT_EQ(bar_line(bar, {.columns = 80}), "reading  3 s");
  EXPECT_EQ(bar_line(bar, {.columns = 5}), "read");
}

TEST(time_left, is_never_nothing) {
  EXPECT_EQ(time_left(0), "1 s");
  EXPECT_EQ(time_left(3e-7), "1 s");
  EXPECT_EQ(time_left(59.2), "1m 00s");
  EXPECT_EQ(time_left(200), "3m 20s");
  EXPECT_EQ(time_left(7500), "2h 05m");
  EXPECT_EQ(time_left(4 * 86400 + 7300), "4d 02h");
  EXPECT_EQ(time_left(1e300), "?");
  EXPECT_EQ(time_left(-1), "1 s");
}

TEST(parts, give_way_from_the_end) {
  const std::vector<std::string> parts{"step 1/9", "loss 2", "left"};
  EXPECT_EQ(parts_line(parts, 0), "step 1/9  loss 2  left");
  EXPECT_EQ(parts_line(parts, 22), "step 1/9  loss 2  left");
  EXPECT_EQ(parts_line(parts, 21), "step 1/9  loss 2");
  EXPECT_EQ(parts_line(parts, 3), "step 1/9");
}

TEST(work, shows_on_a_terminal_at_once_and_elsewhere_only_what_takes_long) {
  std::vector<std::string> bars, lines;
  int cleared = 0;
  const Console terminal{.line = {}, .bar = [&](const Bar* b) {
                           if (b) bars.push_back(bar_line(*b, {.columns = 40}));
                           else ++cleared;
                         }};
  {
    Work work(terminal);
    work.show("reading", 0.5, {{"a"}});
    work.show("writing", 1);
  }
  ASSERT_EQ(bars.size(), 2u);
  EXPECT_TRUE(bars[0].starts_with("reading   50% [===")) << bars[0];
  EXPECT_TRUE(bars[1].starts_with("writing  100% [===")) << bars[1];
  EXPECT_EQ(cleared, 1);
  {
    Work work({.line = [&](std::string_view l) { lines.emplace_back(l); }});
    for (int i = 0; i < 100; ++i) work.show("reading", 0.01 * i);
    Work silent({});
    silent.show("reading", 0);
  }
  EXPECT_EQ(lines.size(), 0u);
}

TEST(waiting, ends_without_delay) {
  for (int i = 0; i < 100; ++i) {
    const Waiting waiting({.line = [](std::string_view) { FAIL() << "must not be reported: too short"; }}, "reading");
    const Waiting silent({}, "reading");
  }
}

}  // namespace
}  // namespace hpcdl
