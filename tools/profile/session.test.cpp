// Real profiled runs: the result must account for all of the time, and the training must not be affected.

#include "tools/profile/session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hpcdl/train/train_for_tests.h"
#include "tools/profile/explain.h"
#include "tools/profile/trace.h"
#include "tools/profile/trace_for_tests.h"

namespace hpcdl::lab {
namespace {

Roofs some_roofs() {
  Roofs r;
  r.f32 = 1e11, r.bf16 = 2e11, r.i8 = 4e11, r.memory_read = r.memory_copy = 1e10, r.cache_read = 5e10,
  r.cache_bytes = 1 << 20;
  return r;
}

void configure(train::RunConfig& c, const io::TempFolder& tmp, const std::string& name) {
  train::toy_config(c, tmp, name);
  c.train.accumulate = 2, c.train.batch = 8;
  c.model.width = 64;
}

/// Records, waits and idle time sum to the step, to the nanosecond: by construction, whatever the machine does
/// meanwhile.
TEST(session, every_nanosecond_of_a_step_is_accounted_for) {
  const io::TempFolder tmp;
  train::RunConfig c;
  configure(c, tmp, "run");
  const auto done = profile_training(c, {.steps = 3, .warmup = 2, .rank = 1, .world = 2},
                                     {.console = {}, .speed_of_light = {}, .after_step = {}, .steps_only = true});
  EXPECT_EQ(done.summary.step, 8);
  EXPECT_FALSE(std::filesystem::exists(tmp / "run"));
  ASSERT_EQ(done.profile.steps.size(), 6u);
  int recorded = 0;
  for (const auto& s : done.profile.steps) {
    recorded += s.recorded;
    EXPECT_EQ(s.runs.size(), s.recorded ? 3u : 0u) << "two passes and an update";
    EXPECT_EQ(s.stages.size(), s.recorded ? 5u : 0u);
  }
  EXPECT_EQ(recorded, 3);
  EXPECT_EQ(done.profile.steps[0].recorded, true);
  EXPECT_EQ(done.profile.steps[3].recorded, true) << "every second pair is in reverse order";

  const auto r = report(done.profile, some_roofs());
  EXPECT_NEAR(r.data + r.records + r.gap_seconds(), r.step_seconds, 1e-9);
  EXPECT_NEAR(r.phases[0] + r.phases[1] + r.phases[2] + r.phases[3], r.records, 1e-9);
  double sum = 0;
  for (const auto& row : r.rows) sum += row.seconds;
  EXPECT_NEAR(sum, r.records, 1e-9);
  EXPECT_EQ(r.overhead.pairs, 3);
  EXPECT_EQ(r.thread_busy.size(), 2u);
  const auto has = [&](const std::string& label) {
    return std::any_of(r.rows.begin(), r.rows.end(),
                       [&](const Row& row) { return row.label() == label && row.calls == 4; });
  };
  EXPECT_TRUE(has("linear layers.*.mlp.down_proj")) << "two layers in two micro-batches; modules give the names";
  EXPECT_TRUE(has("linear.backward layers.*.attn.q_proj"));

  const auto trace = io::parse_json(trace_text(done.profile, some_roofs()).json, "trace");
  check_trace(trace);
  const auto sums = durations(trace);
  EXPECT_NEAR(sums.at("cpu_op"), 3e6 * r.records, 1);
  EXPECT_NEAR(sums.at("step"), 3e6 * r.step_seconds, 1);
  EXPECT_EQ(trace.at("distributedInfo").at("rank"), 1);

  const auto page = report_html(r, done.profile, "a <run>");
  for (const char* part :
       {"a &lt;run&gt;", "<svg", "linear.backward layers.*.mlp.down_proj", "Where most time is lost", "</html>"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  constexpr std::string_view kFormat = "http://www.w3.org/2000/svg";
  for (auto at = page.find("http"); at != std::string::npos; at = page.find("http", at + 1))
    EXPECT_EQ(page.substr(at, kFormat.size()), kFormat) << "the page must not load anything else";
}

TEST(session, profiled_and_explained_runs_train_the_same_bits) {
  const io::TempFolder tmp;
  train::RunConfig plain, profiled, explained;
  configure(plain, tmp, "plain");
  configure(profiled, tmp, "profiled");
  configure(explained, tmp, "explained");
  plain.train.steps = explained.train.steps = 8;
  train::run(plain, {});
  profile_training(profiled, {.steps = 3, .warmup = 2}, {});
  std::string said;
  Explain explain(some_roofs(), {.every = 2, .seconds = 0}, [&](std::string_view text) { said += text; });
  train::run(explained, {.console = {}, .speed_of_light = {}, .after_step = {}, .observer = &explain});
  const auto weights = [&](const char* name) { return io::read_file(tmp.path() / name / "model/model.safetensors"); };
  EXPECT_TRUE(weights("plain") == weights("profiled"));
  EXPECT_TRUE(weights("plain") == weights("explained"));
  EXPECT_EQ(explain.recorded_steps(), 4) << "steps 2, 4, 6 and 8; the first step is cold";
  const auto list = explain.list();
  ASSERT_EQ(list.size(), 5u);
  for (std::size_t i = 0; i + 1 < list.size(); ++i) EXPECT_GE(list[i].lost, list[i + 1].lost);
  EXPECT_NE(said.find("lost against the roof"), std::string::npos);
  EXPECT_NE(explain.text().find(list[0].label), std::string::npos);
}

TEST(session, mistakes_are_told) {
  const io::TempFolder tmp;
  train::RunConfig c;
  configure(c, tmp, "run");
  EXPECT_THROW(profile_training(c, {.steps = 0}, {}), UsageError);
  EXPECT_THROW(profile_training(c, {.rank = 2, .world = 2}, {}), UsageError);
}

}  // namespace
}  // namespace hpcdl::lab
