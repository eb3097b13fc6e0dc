#include "tools/page/page.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tools/page/svg.h"

namespace hpcdl::lab {
namespace {

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

/// Every opening tag is closed, in order; self-closing tags end with "/>".
void expect_balanced(const std::string& text) {
  std::vector<std::string> open;
  for (auto at = text.find('<'); at != std::string::npos; at = text.find('<', at + 1)) {
    const auto end = text.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const auto tag = text.substr(at + 1, end - at - 1);
    if (tag.starts_with("!") || tag.starts_with("meta") || tag.ends_with("/")) continue;
    if (!tag.starts_with("/")) {
      open.push_back(tag.substr(0, tag.find_first_of(" \n")));
      continue;
    }
    ASSERT_FALSE(open.empty()) << tag;
    EXPECT_EQ("/" + open.back(), tag);
    open.pop_back();
  }
  EXPECT_TRUE(open.empty()) << open.back();
}

Page page() {
  return {.title = "a < b & c",
          .subtitle = "now",
          .tiles = {{"speed", "3.1x"}},
          .cards = {{"Facts", std::vector<Fact>{{"threads", "2"}, {"größe", "klein"}}},
                    {"Table", Table{{"", "ours", "theirs"}, {{"time", "1 ms", "10 ms"}, {"memory", "2 GiB"}}},
                     "Both in one run."},
                    {"Curve", LineChart{.x = "step", .y = "loss", .series = {{"a", {{0, 3}, {1, 2}, {2, 1.5}}}}}},
                    {"Bars", BarChart{.parts = {"busy", "waiting"}, .bars = {{"none", {3, 1}, "4 ms"}}}},
                    {"Said", std::vector<Pair>{{"x", "longer", "once", " upon", " again"}}}},
          .footer = "made by a test"};
}

TEST(page, html_is_balanced_and_escaped) {
  const auto html = page_html(page());
  expect_balanced(html);
  EXPECT_EQ(count(html, "a &lt; b &amp; c"), 2);  // title and heading
  EXPECT_EQ(count(html, "<svg"), 2);
  EXPECT_EQ(count(html, "svg{min-width:"), 1);                    // on a phone a chart scrolls instead of shrinking
  EXPECT_EQ(count(html, "<p class=\"hint\">Swipe sideways"), 2);  // and says so; narrow tables do not scroll
  EXPECT_EQ(count(html, "<div class=\"scroll\"><svg"), 2);
  EXPECT_EQ(count(html, "class=\"caveat\""), 0);
  EXPECT_EQ(count(html, "http://") + count(html, "https://"), count(html, "xmlns"));  // nothing is loaded
}

TEST(page, a_caveat_comes_first) {
  auto p = page();
  p.caveat = "not to be quoted";
  EXPECT_LT(page_html(p).find("<p class=\"caveat\">not to be quoted"), page_html(p).find("class=\"tiles\""));
  EXPECT_TRUE(page_text(p).starts_with("not to be quoted\n"));
}

TEST(page, text_lines_up_columns_and_leaves_charts_out) {
  const auto text = page_text(page());
  EXPECT_NE(
      text.find("\nTable\n           ours  theirs\n  time     1 ms   10 ms\n  memory  2 GiB\n  Both in one run.\n"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("  größe                              klein\n"), std::string::npos) << text;
  EXPECT_NE(text.find("x      | once upon\nlonger | once again\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("Curve"), std::string::npos);
}

TEST(chart, points_stand_where_their_numbers_say) {
  const auto s = svg(LineChart{.x = "x", .y = "y", .series = {{"a", {{0, 0}, {10, 5}}}}});
  expect_balanced(s);
  EXPECT_EQ(count(s, "<circle"), 2);
  EXPECT_NE(s.find("M62.0,284.0 L840.0,36.0"), std::string::npos) << s;  // from the lower corner to the upper one
}

TEST(chart, counts_have_no_ticks_between_whole_numbers) {
  const auto ticks = [](double last) {
    return svg(LineChart{.x = "epoch", .y = "y", .series = {{"a", {{1, 0}, {last, 5}}}}});
  };
  EXPECT_EQ(ticks(2).find(">1.2<"), std::string::npos);
  EXPECT_NE(ticks(2).find(">2<"), std::string::npos);
  EXPECT_NE(ticks(2.5).find(">1.2<"), std::string::npos);
}

TEST(chart, powers_of_two_are_evenly_spaced) {
  const auto s = svg(LineChart{.x = "batch", .y = "y", .series = {{"a", {{8, 1}, {16, 2}, {32, 3}}}}, .log_x = true});
  EXPECT_NE(s.find("x=\"451.0\" y=\"302.0\" text-anchor=\"middle\">16<"), std::string::npos) << s;
}

TEST(chart, odd_numbers_are_left_out_and_nothing_is_drawn_of_nothing) {
  const double nan = std::nan(""), inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(svg(LineChart{.x = "x", .y = "y", .series = {{"a", {{0, nan}, {inf, 1}}}}}), "");
  EXPECT_EQ(svg(LineChart{}), "");
  EXPECT_EQ(svg(BarChart{}), "");
  const auto one = svg(
      LineChart{.x = "x", .y = "y", .series = {{"a", {{3, 7}}}, {"none", {{1, nan}}}}});  // a single point has no span
  expect_balanced(one);
  EXPECT_EQ(one.find("nan"), std::string::npos) << one;
  EXPECT_EQ(one.find("inf"), std::string::npos) << one;
}

TEST(chart, values_that_differ_only_by_rounding_have_finitely_many_ticks) {
  const auto s = svg(LineChart{.x = "x", .y = "y", .series = {{"a", {{1, 0.1 + 0.2}, {2, 0.3}}}}});
  expect_balanced(s);
  EXPECT_LT(count(s, "class=\"grid\""), 20);
}

TEST(chart, bars_are_as_long_as_their_parts) {
  const auto s = svg(BarChart{.bars = {{"ab", {10}, ""}, {"c", {5}, ""}}});
  expect_balanced(s);
  const auto width = [&](const std::string& after) {
    const auto at = s.find("width=\"", s.find(after)) + 7;
    return std::stod(s.substr(at));
  };
  EXPECT_NEAR(width("y=\"12.0\" width"), 2 * width("y=\"46.0\" width"), 0.11);
}

TEST(chart, ticks_are_round) {
  EXPECT_DOUBLE_EQ(tick_step(1, 5), 0.2);
  EXPECT_DOUBLE_EQ(tick_step(97, 8), 20);
  EXPECT_DOUBLE_EQ(tick_step(0.003, 5), 0.001);
}

}  // namespace
}  // namespace hpcdl::lab
