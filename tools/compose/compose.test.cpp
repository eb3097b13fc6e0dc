#include "tools/compose/compose.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "hpcdl/io/file.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::lab {
namespace {

using Outcome = Composed::Outcome;

/// Every so many-th of the pairs that hpcdl bench compose runs.
TEST(compose, pairs_of_settings_learn_what_one_rank_learns) {
  constexpr std::size_t kStride = 17;
  const io::TempFolder tmp;
  Composer composer(tmp.path());
  const auto pairs = setting_pairs();
  for (std::size_t i = 0; i < pairs.size(); i += kStride) {
    const auto result = composer.run(pairs[i]);
    EXPECT_NE(result.outcome, Outcome::differs) << to_text(result);
    EXPECT_EQ(result.outcome == Outcome::refused, !refusal(pairs[i]).empty()) << to_text(result);
    EXPECT_EQ(to_json(result).contains("why"), result.outcome == Outcome::refused);
  }
}

TEST(compose, every_setting_is_used_alone_and_with_others) {
  const auto pairs = setting_pairs();
  EXPECT_GE(pairs.size(), 60u);
  for (const auto& p : pairs) {
    EXPECT_TRUE(p.second || refusal(p).empty()) << p.name();
    EXPECT_LE(ranks_of(p), 4) << p.name();
  }
}

/// The table of the documentation is the one that the check of configs gives.
TEST(compose, the_documented_table_is_what_is_refused) {
  const auto page = std::filesystem::path(HPCDL_SOURCE_DIR) / "docs" / "distributed.in.md";
  EXPECT_NE(io::read_file(page).find(composition_table()), std::string::npos)
      << page << " should have the table that hpcdl bench compose --table prints:\n"
      << composition_table();
}

}  // namespace
}  // namespace hpcdl::lab
