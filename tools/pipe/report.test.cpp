#include "tools/pipe/report.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>

#include "hpcdl/error.h"
#include "hpcdl/pipe/order_file.h"
#include "hpcdl/pipe/vocabulary.h"

namespace hpcdl::lab::pipe {
namespace {

Report made(std::string_view name, const engine::PipeShape& shape, const engine::Costs* costs = nullptr,
            std::int64_t memory = 0) {
  return examine(std::string(name), engine::make_schedule(engine::schedule_kind(name), shape), costs, memory);
}

engine::Costs heavy_head() {
  engine::Costs costs;
  for (int i = 0; i < 6; ++i)
    costs.layers.push_back({.name = "layers." + std::to_string(i),
                            .forward = i == 5 ? 3e-3 : 1e-3,
                            .input_gradient = 1e-3,
                            .weight_gradient = 1e-3,
                            .state_bytes = 1000,
                            .frame_bytes = 100,
                            .activation_bytes = 1000,
                            .gradient_bytes = 1000});
  costs.link = {.latency = 1e-4, .bytes_per_second = 1e7};
  return costs;
}

TEST(report, a_given_cut_is_taken) {
  const auto costs = heavy_head();
  const auto orders = engine::make_schedule(engine::schedule_kind("1f1b"), {.ranks = 2, .micros = 4});
  const auto given = examine("1f1b", orders, &costs, 0, {1, 5}), best = examine("1f1b", orders, &costs);
  EXPECT_EQ(given.best.partition, (engine::Partition{1, 5}));
  EXPECT_GT(given.best.simulation.makespan, best.best.simulation.makespan);
  for (const auto& wrong : {engine::Partition{1, 4}, {2, 2, 2}, {7, 1}})
    EXPECT_THROW(examine("1f1b", orders, &costs, 0, wrong), UsageError);
}

TEST(report, lines_of_a_timeline_fit_and_all_ranks_have_the_same_length) {
  for (const std::size_t columns : {40u, 79u, 200u}) {
    const auto r = made("interleaved", {3, 2, 8});
    std::istringstream text(timeline_text(r, columns, false));
    std::string line;
    std::size_t first = 0, parts = 0;
    while (std::getline(text, line) && !line.starts_with("F forward")) {
      EXPECT_LE(line.size(), columns);
      if (line.empty()) continue;
      if (line.starts_with("rank 0")) first = line.size(), ++parts;
      EXPECT_EQ(line.size(), first) << line;
    }
    EXPECT_GE(parts, columns == 200 ? 1u : 2u);
  }
}

TEST(report, labels_name_the_stage_where_a_rank_has_several) {
  const auto one = made("1f1b", {2, 1, 2}), two = made("zbv", {2, 2, 2});
  EXPECT_EQ(cell_label(one.schedule, 1, {.act = engine::Act::backward, .stage = 1, .micro = 0}), "B0");
  EXPECT_EQ(cell_label(two.schedule, 1, {.act = engine::Act::forward, .stage = 1, .micro = 1}), "F1a");
  EXPECT_EQ(cell_label(two.schedule, 1, {.act = engine::Act::weight_gradient, .stage = 2, .micro = 1}), "W1b");
}

TEST(report, colours_end_where_they_should) {
  const auto text = timeline_text(made("zero_bubble", {2, 1, 3}), 100, true);
  EXPECT_NE(text.find("\x1b[34mF0"), std::string::npos);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.find('\x1b') != std::string::npos) {
      EXPECT_EQ(line.substr(line.rfind('\x1b'), 4), "\x1b[0m") << line;
    }
}

TEST(report, cuts_by_cost_and_compares_with_an_even_cut) {
  const auto costs = heavy_head();
  const auto r = made("1f1b", {2, 1, 4}, &costs);
  EXPECT_EQ(r.best.partition, (engine::Partition{3, 3}));
  const auto three = made("1f1b", {3, 1, 8}, &costs);
  EXPECT_LE(three.best.simulation.makespan, three.even->simulation.makespan);
  EXPECT_NE(to_text(three).find("layers by cost"), std::string::npos);
  EXPECT_GT(r.best.simulation.ranks[0].wire_bytes, 0);
}

TEST(report, limits_memory) {
  const auto costs = heavy_head();
  EXPECT_THROW(made("1f1b", {2, 1, 4}, &costs, 3000), UsageError);
  EXPECT_NO_THROW(made("1f1b", {2, 1, 4}, &costs, 3600));
  EXPECT_THROW(made("round_robin", {2, 1, 4}, &costs, 3600), UsageError);
}

TEST(report, picture_has_a_bar_for_every_action_and_a_line_for_every_transfer) {
  const auto costs = heavy_head();
  const auto svg = to_svg(made("zero_bubble", {3, 1, 4}, &costs));
  const auto count = [&](std::string_view part) {
    std::size_t n = 0;
    for (std::size_t at = 0; (at = svg.find(part, at)) != std::string::npos; ++at) ++n;
    return n;
  };
  EXPECT_EQ(count("<title>"), 3u * 4 * 3);
  EXPECT_EQ(count("class=\"arrow"), 2u * 2 * 4);
  EXPECT_EQ(count("<svg"), 1u);
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

TEST(report, shows_a_divided_vocabulary) {
  const auto orders = engine::make_schedule(engine::schedule_kind("1f1b"), {.ranks = 2, .micros = 3}, {.barriers = 2});
  auto costs = heavy_head();
  const auto of_whole = costs;
  costs.layers.pop_back();
  costs.vocabulary = engine::VocabularyCost{.logits = 1, .loss = 2, .state_bytes = 100, .hidden_bytes = 5};
  const auto r = examine("1f1b", orders, &costs);
  EXPECT_EQ(cell_label(r.schedule, 1, {.act = engine::Act::logits, .stage = 1, .micro = 2}), "V2");
  EXPECT_NE(to_text(r).find("share of the vocabulary"), std::string::npos) << to_text(r);
  EXPECT_NE(timeline_text(r, 200, false).find("V0"), std::string::npos) << timeline_text(r, 200, false);
  EXPECT_EQ(to_json(r).at("barriers"), 2);
  EXPECT_GT(to_json(r).at("ranks")[0].at("peak_bytes"), 100);
  const auto svg = to_svg(r);
  EXPECT_NE(svg.find("the logits of rank 1, micro-batch 2"), std::string::npos);
  EXPECT_NE(svg.find("a share of the vocabulary"), std::string::npos);
  EXPECT_THROW(examine("1f1b", orders, &of_whole), UsageError);
  EXPECT_THROW(examine("1f1b", engine::make_schedule(engine::schedule_kind("1f1b"), {.ranks = 2, .micros = 3}), &costs),
               UsageError);
  EXPECT_THROW(examine("1f1b", orders, &costs, 90), UsageError) << "its share alone is larger";
  const auto units = examine("1f1b", orders, nullptr);
  EXPECT_NE(to_json(units).at("notes").dump().find("a quarter of a unit"), std::string::npos);
}

TEST(report, a_deadlock_has_no_times) {
  const auto r = examine("order.csv", engine::parse_order("0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1", "test"), nullptr);
  EXPECT_EQ(r.deadlock.size(), 4u);
  EXPECT_TRUE(to_svg(r).empty());
  EXPECT_NE(to_text(r).find("deadlock"), std::string::npos);
}

}  // namespace
}  // namespace hpcdl::lab::pipe
