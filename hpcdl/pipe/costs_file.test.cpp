#include "hpcdl/pipe/costs_file.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "hpcdl/error.h"
#include "hpcdl/io/json.h"

namespace hpcdl::pipe {
namespace {

const char* const kGolden = HPCDL_SOURCE_DIR "/hpcdl/pipe/golden/costs.json";

TEST(costs_file, golden) {
  const auto costs = read_costs(kGolden);
  ASSERT_EQ(costs.layers.size(), 2u);
  EXPECT_EQ(costs.layers[0], (PartCost{.name = "embedding",
                                       .forward = 1e-4,
                                       .input_gradient = 0,
                                       .weight_gradient = 2e-4,
                                       .state_bytes = 4096,
                                       .value_bytes = 1024,
                                       .frame_bytes = 64,
                                       .activation_bytes = 128,
                                       .forward_records = 1,
                                       .weight_records = 1}));
  EXPECT_EQ(costs.layers[1],
            (PartCost{.name = "layer 1", .forward = 1e-3, .input_gradient = 1e-3, .weight_gradient = 1.2e-3}));
  EXPECT_EQ(costs.link, (LinkRate{1e-5, 2.5e10}));
  EXPECT_EQ(costs.host, LinkRate());
  EXPECT_EQ(costs_from(io::parse_json(to_json(costs).dump(), "test"), "test"), costs);
  EXPECT_EQ(costs_from(io::parse_json("{\"makespan\": 1, \"costs\": " + to_json(costs).dump() + "}", "test"), "test"),
            costs);
}

TEST(costs_file, has_the_share_of_a_vocabulary) {
  auto costs = read_costs(kGolden);
  EXPECT_FALSE(costs.vocabulary);
  costs.vocabulary = VocabularyCost{.lookup = 1e-6,
                                    .logits = 2e-4,
                                    .loss = 4e-4,
                                    .lookup_gradient = 2e-6,
                                    .state_bytes = 1 << 20,
                                    .rows_bytes = 3,
                                    .head_bytes = 5,
                                    .gradient_bytes = 7,
                                    .hidden_bytes = 11,
                                    .statistics_bytes = 13,
                                    .lookup_records = 1,
                                    .logits_records = 2,
                                    .loss_records = 4,
                                    .gradient_records = 1};
  EXPECT_EQ(costs_from(io::parse_json(to_json(costs).dump(), "test"), "test"), costs);
}

TEST(costs_file, refuses_hostile_input) {
  const std::string good = R"("forward": 1, "input_gradient": 1, "weight_gradient": 1)";
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
           {"[]", "object"},
           {"{}", "expected \"layers\""},
           {R"({"layers": []})", "expected \"layers\""},
           {R"({"layers": {}})", "expected \"layers\""},
           {R"({"layers": [3]})", "layer 0"},
           {R"({"layers": [{"forward": 1}]})", "input_gradient"},
           {R"({"layers": [{"forward": "1", "input_gradient": 1, "weight_gradient": 1}]})", "forward"},
           {R"({"layers": [{"forward": -1, "input_gradient": 1, "weight_gradient": 1}]})", "at least 0"},
           {R"({"layers": [{"forward": 1e300, "input_gradient": 1, "weight_gradient": 1}]})", "at most"},
           {R"({"layers": [{"forward": 0, "input_gradient": 0, "weight_gradient": 0}]})", "takes time"},
           {R"({"layers": [{)" + good + R"(}], "vocabulary": 3})", "vocabulary"},
           {R"({"layers": [{)" + good + R"(}], "vocabulary": {"lookup": 1, "logits": 1, "loss": 1}})",
            "lookup_gradient"},
           {R"({"layers": [{)" + good +
                R"(}], "vocabulary": {"lookup": 0, "logits": -1, "loss": 1, "lookup_gradient": 0}})",
            "at least 0"},
           {R"({"layers": [{)" + good +
                R"(}], "vocabulary": {"lookup": 0, "logits": 1, "loss": 1, "lookup_gradient": 0, "state_bytes": -1}})",
            "between 0"},
           {R"({"layers": [{)" + good +
                R"(}], "vocabulary": {"lookup": 0, "logits": 1, "loss": 1, "lookup_gradient": 0, "heads": 1}})",
            "unknown key"},
           {R"({"layers": [{)" + good + R"(, "bytes": 1}]})", "unknown key \"bytes\""},
           {R"({"layers": [{)" + good + R"(, "frame_bytes": -1}]})", "frame_bytes"},
           {R"({"layers": [{)" + good + R"(, "frame_bytes": 1.5}]})", "frame_bytes"},
           {R"({"layers": [{)" + good + R"(}], "link": {"latency": 0, "bytes_per_second": 0}})", "above 0"},
           {R"({"layers": [{)" + good + R"(}], "link": {"latency": 0}})", "bytes_per_second"},
           {R"({"layers": [{)" + good + R"(}], "links": {}})", "unknown key \"links\""}}) {
    try {
      costs_from(io::parse_json(text, "test"), "costs.json");
      FAIL() << text;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("costs.json"), std::string::npos) << e.what();
    }
  }
  std::string nested = "{}";
  for (int i = 0; i < 60; ++i) nested = "{\"costs\": " + nested + "}";
  EXPECT_THROW(costs_from(io::parse_json(nested, "test"), "costs.json"), Error);
}

}  // namespace
}  // namespace hpcdl::pipe
