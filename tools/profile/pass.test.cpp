#include "tools/profile/pass.h"

#include <gtest/gtest.h>

#include "hpcdl/infer/engine_for_tests.h"
#include "tools/profile/profile_for_tests.h"

namespace hpcdl::lab {
namespace {

/// Measuring a pass again and again leaves the texts that follow as they would be without.
TEST(pass, last_one_of_an_engine_is_profiled) {
  Pool pool(2);
  const auto model = infer::with_clear_logits(io::Family::llama);
  infer::Engine engine(model, pool), other(model, pool);
  EXPECT_EQ(engine.last_program(), nullptr);
  const auto text = [](infer::Engine& e, int first) {
    infer::Heard heard;
    submit(e, {.prompt = infer::ids_from(first, 5), .tokens = 4, .sampling = {.ignore_eos = true}}, heard);
    e.run();
    return heard.ids;
  };
  const auto before = text(engine, 1);
  ASSERT_NE(engine.last_program(), nullptr);
  const auto r = profile_pass(*engine.last_program(), engine.stream(), toy_roofs(), 3);
  EXPECT_EQ(r.steps, 3);
  EXPECT_EQ(r.overhead.pairs, 3);
  EXPECT_EQ(r.threads, 2);
  ASSERT_FALSE(r.rows.empty());
  double sum = 0;
  for (const auto& row : r.rows) sum += row.seconds;
  EXPECT_NEAR(sum, r.records, 1e-9);
  EXPECT_NE(ranked_text(r, 2).find(r.rows[0].label()), std::string::npos);
  EXPECT_NE(ranked_text(r, 2).find("more"), std::string::npos);
  EXPECT_EQ(text(other, 1), before);
  EXPECT_EQ(text(engine, 9), text(other, 9));
}

}  // namespace
}  // namespace hpcdl::lab
