#include "tools/roofline/picture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

#include "tools/roofline/report_for_tests.h"

namespace hpcdl::lab::roofline {
namespace {

/// Empty if `xml` is well formed as far as pictures and pages need: nested tags, quoted attributes, escaped text.
std::string fault_in(std::string xml) {
  if (xml.starts_with("<!DOCTYPE html>")) xml.erase(0, 15);
  std::vector<std::string> open;
  static const std::regex attributes(R"re(^(\s+[A-Za-z_:][\w:.-]*="[^"<&]*(&(amp|lt|gt|quot);[^"<&]*)*")*\s*$)re");
  for (std::size_t at = 0; at < xml.size();) {
    const auto tag = xml.find('<', at);
    const auto text = xml.substr(at, tag == std::string::npos ? std::string::npos : tag - at);
    const bool raw = !open.empty() && (open.back() == "style" || open.back() == "script");
    for (auto amp = text.find('&'); amp != std::string::npos; amp = text.find('&', amp + 1))
      if (!std::regex_search(text.substr(amp, 6), std::regex("^&(amp|lt|gt|quot);")) || raw)
        return "bare & in: " + text.substr(amp, 30);
    if (tag == std::string::npos) break;
    const auto end = xml.find('>', tag);
    if (end == std::string::npos) return "an open tag at the end";
    std::string inside = xml.substr(tag + 1, end - tag - 1);
    at = end + 1;
    if (inside.starts_with('/')) {
      if (open.empty() || open.back() != inside.substr(1))
        return "</" + inside.substr(1) + "> does not close " + (open.empty() ? "anything" : open.back());
      open.pop_back();
      continue;
    }
    const bool closed = inside.ends_with('/');
    if (closed) inside.pop_back();
    const auto name = inside.substr(0, inside.find_first_of(" \n"));
    if (!std::regex_match(inside.substr(name.size()), attributes)) return "attributes of: " + inside.substr(0, 80);
    if (!closed) open.push_back(name);
  }
  return open.empty() ? "" : "never closed: " + open.back();
}

/// Every match of a pattern with two groups, as numbers.
std::vector<std::pair<double, double>> places(const std::string& svg, const std::string& pattern) {
  std::vector<std::pair<double, double>> list;
  const std::regex r(pattern);
  for (auto it = std::sregex_iterator(svg.begin(), svg.end(), r); it != std::sregex_iterator(); ++it)
    list.emplace_back(std::stod((*it)[1]), std::stod((*it)[2]));
  return list;
}

std::size_t count(const std::string& text, const std::string& word) {
  std::size_t n = 0;
  for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++n;
  return n;
}

constexpr double kLeft = 86, kTop = 112, kRight = 1250, kBottom = 730;

TEST(picture, the_checker_knows_good_from_bad) {
  EXPECT_EQ(fault_in("<a b=\"1\"><c/>x &amp; y</a>"), "");
  for (const char* bad : {"<a>", "<a></b>", "<a b=1/>", "<a>x & y</a>", "<a b=\"<\"/>", "</a>", "<a"})
    EXPECT_NE(fault_in(bad), "") << bad;
}

TEST(picture, is_well_formed_whatever_is_in_it) {
  for (const auto& ops : {std::vector<std::string>{}, {"softmax"}, {"int4_linear", "fill"}}) {
    const auto report = report_for_tests(ops, 0.8);
    EXPECT_EQ(fault_in(to_svg(report)), "");
    EXPECT_EQ(fault_in(to_html(report)), "");
  }
}

TEST(picture, all_kernels_and_labels_lie_within_the_plot) {
  const auto report = report_for_tests({}, 0.6);
  const auto svg = to_svg(report);
  const auto marks = places(svg, R"re(data-row="\d+"><circle cx="([-\d.]+)" cy="([-\d.]+)")re");
  EXPECT_GT(marks.size(), 150u);
  const auto labels = places(svg, R"re(<text x="([-\d.]+)" y="([-\d.]+)" class="label )re");
  EXPECT_GT(labels.size(), 20u);
  for (const auto& list : {marks, labels})
    for (const auto& [x, y] : list) {
      EXPECT_GT(x, kLeft);
      EXPECT_LT(x, kRight);
      EXPECT_GT(y, kTop);
      EXPECT_LT(y, kBottom);
    }
  EXPECT_EQ(count(svg, "<title>"), marks.size() + 1) << "a title for details on every kernel, and one for the picture";
}

TEST(picture, a_few_kernels_all_get_labels) {
  const auto report = report_for_tests({"softmax"}, 0.6);
  std::vector<const Row*> rows = report.all();
  ASSERT_LE(rows.size(), kLabelAll);
  const auto svg = to_svg(report);
  EXPECT_EQ(count(svg, "class=\"label "), rows.size());
  EXPECT_NE(svg.find("softmax 4096x32768  60 %"), std::string::npos);
}

TEST(picture, many_kernels_show_each_op_once_per_roof) {
  const auto report = report_for_tests({}, 0.6);
  const auto chosen = labelled(report.all());
  EXPECT_LT(chosen.size(), 60u);
  EXPECT_EQ(std::count_if(chosen.begin(), chosen.end(), [](const Row* r) { return r->source == "seed"; }), 3);
  for (const char* op : {"attention", "matmul", "layer_norm", "adamw"})
    EXPECT_TRUE(std::any_of(chosen.begin(), chosen.end(), [&](const Row* r) { return r->op.starts_with(op); })) << op;
}

TEST(picture, shows_every_roof) {
  const auto svg = to_svg(report_for_tests({}, 0.6));
  for (const char* words : {"memory 60.0 GB/s", "L1 900 GB/s", "L2 400 GB/s", "L3 200 GB/s", "f32 500 GFLOP/s",
                            "bf16 1000 GFLOP/s", "int8 2000 GOP/s", "Test &amp; &lt;Co&gt;"})
    EXPECT_NE(svg.find(words), std::string::npos) << words;
}

TEST(picture, f16_stands_under_the_roof_of_bf16_and_bears_its_own_name) {
  auto report = report_for_tests({"matmul"}, 0.6);
  for (auto& r : report.rows)
    for (auto& part : r.parts)
      if (part.unit == Unit::bf16) part.unit = Unit::f16;
  const auto svg = to_svg(report);
  for (const char* words : {"bf16 1000 GFLOP/s", ">f16 operands<", ">f16 arithmetic<"})
    EXPECT_NE(svg.find(words), std::string::npos) << words;
  EXPECT_EQ(svg.find("bf16 operands"), std::string::npos);
}

TEST(picture, roofs_of_one_speed_are_named_beside_each_other) {
  auto report = report_for_tests({"softmax"}, 0.6);
  report.roofs.caches.back().read = 1.01 * report.roofs.memory();
  report.roofs.caches.back().copy = report.roofs.memory();
  const auto svg = to_svg(report);
  const auto place_of = [&](const std::string& name) {
    std::smatch m;
    const std::regex text("<text x=\"([0-9.]+)\" y=\"[0-9.]+\" class=\"on-[a-z]+\"[^>]*>" + name + " ");
    return std::regex_search(svg, m, text) ? std::stod(m[1]) : -1e9;
  };
  const double memory = place_of("memory"), cache = place_of("L3");
  ASSERT_GT(std::min(memory, cache), 0);
  EXPECT_GT(std::abs(memory - cache), 60);
}

TEST(picture, a_fault_is_never_shown_as_a_win) {
  auto report = report_for_tests({"add"}, 0.6);
  EXPECT_EQ(to_svg(report).find("ABOVE ITS ROOF"), std::string::npos);
  report.rows.back().seconds = report.rows.back().light.seconds / 1.3;
  const auto svg = to_svg(report), html = to_html(report);
  EXPECT_NE(svg.find("ABOVE ITS ROOF"), std::string::npos);
  EXPECT_NE(svg.find("1 of "), std::string::npos);
  EXPECT_EQ(svg.find("Every kernel under its roof"), std::string::npos);
  EXPECT_NE(html.find("tr id=\"r" + std::to_string(report.rows.size() - 1) + "\" class=\"fault\""), std::string::npos);
  EXPECT_EQ(fault_in(svg), "");
}

TEST(picture, the_page_says_that_it_is_not_to_be_trusted) {
  auto report = report_for_tests({"add"}, 0.6);
  EXPECT_EQ(to_html(report).find("not to be trusted"), std::string::npos);
  report.disturbance = {.seconds = 1, .processors = 2, .waited = 0.5};
  const auto html = to_html(report);
  EXPECT_NE(html.find("<p class=\"caveat\">These figures are not to be trusted: our threads waited"),
            std::string::npos);
  EXPECT_EQ(fault_in(html), "");
}

TEST(picture, needs_nothing_from_elsewhere) {
  const auto html = to_html(report_for_tests({}, 0.6));
  EXPECT_EQ(count(html, "http"), count(html, "http://www.w3.org/")) << "only the names of the formats contain http";
  for (const char* word : {"src=", "@import", "url("}) EXPECT_EQ(html.find(word), std::string::npos) << word;
  EXPECT_EQ(count(html, "<tr id="), report_for_tests({}, 0.6).rows.size());
  EXPECT_NE(html.find("prefers-color-scheme: dark"), std::string::npos);
}

TEST(picture, rows_that_were_not_measured_stand_at_their_roof) {
  auto report = report_for_tests({"softmax"}, 0.6);
  for (auto& r : report.rows) r.seconds = 0;
  const auto svg = to_svg(report);
  EXPECT_EQ(fault_in(svg), "");
  EXPECT_NE(svg.find("at the speed of light"), std::string::npos);
}

}  // namespace
}  // namespace hpcdl::lab::roofline
