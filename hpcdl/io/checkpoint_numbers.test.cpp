// state.json with correct checksums and wrong numbers: each is refused, with the file, the key, what was expected and
// what was found.

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/checkpoint_for_tests.h"
#include "hpcdl/io/checkpoint_state.h"
#include "hpcdl/io/json.h"
#include "hpcdl/io/shard_plan.h"

namespace hpcdl::io {
namespace {

class CheckpointNumbers : public testing::Test {
 protected:
  CheckpointNumbers() {
    write_checkpoint(folder(), ToyRun(7).state(), 1, ToyRun(7).content(), alone_);
    whole_ = read_json(folder() / "state.json");
  }
  fs::path folder() const { return tmp_ / "step_00000007"; }
  /// The error for state.json with one number replaced; empty: none.
  std::string said(const std::string& pointer, const Json& value) const {
    Json json = whole_;
    json[Json::json_pointer(pointer)] = value;
    seal_checkpoint(folder(), json);
    try {
      verify_checkpoint(folder());
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }

  TempFolder tmp_;
  OneRank alone_;
  Json whole_;
};

TEST_F(CheckpointNumbers, are_compared_with_their_ranges) {
  EXPECT_EQ(said("/step", 7), "");
  struct Case {
    const char *pointer, *key, *expected;
    Json value;
  };
  const Case cases[] = {
      {"/step", "\"step\"", "from 0 to 281474976710656, found -1", -1},
      {"/step", "\"step\"", "from 0 to 281474976710656, found 9223372036854775807", INT64_MAX},
      {"/step", "\"step\"", "a whole number", UINT64_MAX},
      {"/step", "\"step\"", "a whole number", 7.5},
      {"/tokens", "\"tokens\"", "found -7168", -7168},
      {"/tokens", "\"tokens\"", "so 7 or more (key \"step\"), found 3", 3},
      {"/sampler/epoch", "\"epoch\"", "found -2", -2},
      {"/sampler/index", "\"index\"", "found -9223372036854775808", INT64_MIN},
      {"/seed", "\"seed\"", "a whole number >= 0", -1},
      {"/format", "\"format\"", "1 to 3, found 0", 0},
      {"/format", "\"format\"", "1 to 3, found -9223372036854775808", INT64_MIN},
      {"/serial", "\"serial\"", "found 9223372036854775807", INT64_MAX},
      {"/ranks", "\"ranks\"", "from 1 to 16777216, found 0", 0},
      {"/scalars/best loss", "\"best loss\"", "a number", "1"},
      {"/files/config.json/bytes", "\"bytes\"", "found -3", -3},
      {"/files/config.json/crc32c", "\"crc32c\"", "from 0 to 4294967295, found 4294967296", 4294967296},
      {"/model/a.weight/crc32c", "\"crc32c\"", "found -1", -1},
      {"/optimizer/optim-rank0.safetensors/a.weight.m/crc32c", "\"crc32c\"", "found 1099511627776", 1099511627776},
  };
  for (const auto& c : cases) {
    const std::string message = said(c.pointer, c.value);
    EXPECT_NE(message.find((folder() / "state.json").string()), std::string::npos) << c.pointer << ": " << message;
    EXPECT_NE(message.find(c.key), std::string::npos) << c.pointer << ": " << message;
    EXPECT_NE(message.find(c.expected), std::string::npos) << c.pointer << ": " << message;
  }
}

/// Every number of the file, by many values: an Error or a state that is in range, never a crash.
TEST_F(CheckpointNumbers, any_value_is_read_or_refused) {
  const Json values[] = {-1, 0, 8, INT64_MAX, INT64_MIN, UINT64_MAX, 1e300, -0.5, nullptr, true, "7", {1}};
  int refused = 0;
  const Json flat = whole_.flatten();
  for (const auto& [pointer, old] : flat.items())
    for (const auto& value : values) {
      const auto message = said(pointer, value);
      refused += !message.empty();
      if (!message.empty()) continue;
      const auto info = read_checkpoint_info(folder());
      EXPECT_GE(info.state.step, 0) << pointer << value;
      EXPECT_GE(info.state.tokens, info.state.step) << pointer << value;
      EXPECT_GE(info.ranks, 1) << pointer << value;
    }
  EXPECT_GT(refused, 100);
}

TEST(shard_numbers, parts_lie_in_the_whole) {
  const auto said = [](const std::string& text) -> std::string {
    try {
      const Shape local{12, 8};
      whole_spec({local, DType::f32}, part_from(parse_json(text, "state.json"), local, "state.json: \"w\""),
                 "state.json: \"w\"");
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(said(R"({"dim": 1, "whole": 12, "pieces": [[0, 4], [8, 4]]})"), "");
  EXPECT_EQ(said(R"({"whole": [12, 12], "strides": [8, 1],
                     "boxes": [[[0, 0], [12, 4], 0], [[0, 8], [12, 4], 4]]})"),
            "");
  EXPECT_EQ(said("{}"), "");
  const std::pair<const char*, const char*> cases[] = {
      {R"({"dim": -7, "whole": 12, "pieces": [[0, 4]]})", "key \"dim\": expected a whole number from 0 to"},
      {R"({"dim": 4294967296, "whole": 12, "pieces": [[0, 4]]})", "found 4294967296"},
      {R"({"dim": 0, "whole": -12, "pieces": [[0, 4]]})", "key \"whole\""},
      {R"({"dim": 0, "whole": 12, "pieces": [[9, 4]]})", "found \"[9,4]\""},
      {R"({"dim": 0, "whole": 12, "pieces": [[-1, 4]]})", "found \"[-1,4]\""},
      {R"({"dim": 0, "whole": 12, "pieces": [[18446744073709551615, 4]]})", "within the 12 elements"},
      {R"({"dim": 0, "whole": 12, "pieces": [[4, 9223372036854775807]]})", "within the 12 elements"},
      {R"({"dim": 0, "whole": 12, "pieces": 3})", "key \"pieces\": expected an array, found number"},
      {R"({"dim": 2, "whole": 12, "pieces": [[0, 4]]})", "expected a dim of the tensor (12, 8), found 2"},
      {R"({"whole": [12, 12], "strides": [8, 1], "boxes": 3})", "key \"boxes\": expected an array, found number"},
      {R"({"whole": [12, 12], "strides": [8, 1]})", "key \"boxes\": expected an array, found none"},
      {R"({"strides": [8, 1], "boxes": []})", "key \"whole\": expected an array, found null"},
      {R"({"whole": [12, 12], "boxes": []})", "key \"strides\": expected an array, found null"},
      {R"({"whole": [1,1,1,1,1,1,1], "strides": [8, 1], "boxes": []})", "key \"whole\": expected at most 6"},
      {R"({"whole": [12, -12], "strides": [8, 1], "boxes": []})", "found \"[12,-12]\""},
      {R"({"whole": [12, 18446744073709551615], "strides": [8, 1], "boxes": []})", "whole numbers from 0 to"},
      {R"({"whole": [12, 12.5], "strides": [8, 1], "boxes": []})", "whole numbers from 0 to"},
      {R"({"whole": [12, 12], "strides": [8, 1], "boxes": [[[0, 0], [12, 8]]]})", "expected boxes [begin, extent, at]"},
      {R"({"whole": [12, 12], "strides": [8, 1], "boxes": [[[0, 0], [12, 8], -1]]})", "found \"[[0,0],[12,8],-1]\""},
      {R"({"whole": [12, 12], "strides": [8, 1], "boxes": [[0, [12, 8], 0]]})", "expected an array, found number"},
      {R"({"whole": [12, 12], "strides": [8, 1], "boxes": [[[0, 5], [12, 8], 0]]})", "does not lie in (12, 12)"},
      {R"({"whole": [12, 12], "strides": [8, 1], "boxes": [[[0, 0], [12, 8], 1]]})", "does not lie in the holder's"},
      {R"({"whole": [12, 12], "strides": [8, 1], "boxes": [[[0, 0], [12, 4], 0]]})", "its boxes have 48 elements"}};
  for (const auto& [text, part] : cases) {
    const auto message = said(text);
    EXPECT_NE(message.find(part), std::string::npos) << text << ": " << message;
    EXPECT_NE(message.find("state.json: \"w\""), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace hpcdl::io
