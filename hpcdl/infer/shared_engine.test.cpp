// The texts of an engine whose model several ranks share, against those of one rank.

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/infer/engine_for_tests.h"
#include "hpcdl/testing/shared_model.h"

namespace hpcdl::infer {
namespace {

using models::LanguageModel;

constexpr std::int64_t kVocab = 67;  // which no number of ranks divides

/// `heads` that a rank may have one of; their size is 8.
io::ModelConfig config_of(io::Family family, std::int64_t heads, std::int64_t kv_heads) {
  io::ModelConfig c;
  c.family = family;
  c.layers = 2, c.heads = heads, c.width = 8 * heads, c.context = 160, c.vocab = kVocab;
  c.ffn = 12 * heads;
  c.tied = family == io::Family::gpt2 || family == io::Family::gemma2;
  if (family != io::Family::gpt2) c.kv_heads = kv_heads;
  if (models::row_of(family).has_windows) c.window = 9;
  if (models::row_of(family).mixture) c.experts = 5, c.chosen_experts = 2;
  models::resolve(c);
  return c;
}

/// Larger weights than fresh ones, so that the logits differ clearly.
LanguageModel model_of(const io::ModelConfig& config, models::Sharing sharing = {}) {
  auto model = LanguageModel::create(config, 3, false, std::move(sharing));
  for (auto& p : model.parameters())
    for (std::int64_t i = 0; p.param->decay && i < p.memory.size(); ++i) p.memory.ptr<float>()[i] *= 5;
  return model;
}

struct Odd final : TokenConstraint {
  void mask(std::span<std::uint32_t> allowed) override {
    for (auto& word : allowed) word = 0xaaaaaaaau;
  }
  void accept(std::int32_t id) override { EXPECT_EQ(id % 2, 1); }
};

/// Texts of many lengths with every kind of option, some of which begin alike.
std::vector<Request> requests() {
  const std::vector<SamplingOptions> kinds{{},
                                           {.temperature = 1, .top_k = 20, .seed = 7},
                                           {.temperature = 0.5F, .top_p = 0.9F, .seed = 8},
                                           {.temperature = 1, .min_p = 0.05F, .seed = 9},
                                           {.temperature = 2, .typical_p = 0.7F, .seed = 3, .logprobs = 0},
                                           {.repetition_penalty = 1.2F, .frequency_penalty = 0.1F},
                                           {.logprobs = 2},
                                           {.min_tokens = 9, .stop_ids = {3, 17, 40}},
                                           {.logit_bias = {{5, 4.0F}}, .banned_ids = {9}}};
  std::vector<Request> list;
  for (std::size_t i = 0; i < 14; ++i) {
    const bool grows = i < 4;
    Request r{.prompt = ids_from(static_cast<int>(i % 4), grows        ? 8
                                                          : i % 3 == 0 ? 70
                                                                       : static_cast<int>(1 + i * 5)),
              .tokens = static_cast<int>(grows ? 80 : 3 + i * 7 % 20),
              .sampling = kinds[i % kinds.size()]};
    if (i % 6 == 5) r.prompt_logprobs = 1;
    if (i % 7 == 3) r.constraint = std::make_shared<Odd>();
    list.push_back(std::move(r));
  }
  return list;
}

struct Result {
  std::deque<Heard> heard;
  EngineState state;
};

Result texts_of(const LanguageModel& model, Pool& pool, EngineOptions o, RankLink* ranks = nullptr) {
  Result r;
  o.ranks = ranks;
  Engine engine(model, pool, o);
  for (auto& request : requests()) {
    submit(engine, std::move(request), r.heard.emplace_back());
    if (r.heard.size() % 3 == 0) engine.step();
  }
  engine.run();
  expect_all_pages(engine);
  r.state = engine.state();
  return r;
}

void expect_same(const Result& got, const Result& want) {
  for (std::size_t i = 0; i < want.heard.size(); ++i) {
    SCOPED_TRACE("text " + std::to_string(i));
    const auto &a = got.heard[i], &b = want.heard[i];
    EXPECT_EQ(a.end.reason, b.end.reason) << a.end.message << b.end.message;
    ASSERT_EQ(a.ids, b.ids);
    for (std::size_t t = 0; t < b.logprobs.size(); ++t) EXPECT_NEAR(a.logprobs[t], b.logprobs[t], 1e-3);
    ASSERT_EQ(a.end.prompt_logprobs.size(), b.end.prompt_logprobs.size());
    for (std::size_t t = 0; t < b.end.prompt_logprobs.size(); ++t)
      EXPECT_NEAR(a.end.prompt_logprobs[t].logprob, b.end.prompt_logprobs[t].logprob, 1e-3);
  }
  EXPECT_GT(got.state.cached_tokens, 0);
}

/// With few pages, so that texts are preempted.
EngineOptions few_pages() { return {.sequences = 5, .pages = 4, .budget = 90}; }

void expect_texts_of_one_rank(const io::ModelConfig& config, int ranks, const EngineOptions& options) {
  SCOPED_TRACE(fmt::format("{}, {} heads, {} of keys, {} ranks", io::enum_name(config.family), config.heads,
                           config.kv_heads, ranks));
  Pool pool(2);
  const auto want = texts_of(model_of(config), pool, options);
  EXPECT_GT(want.state.preemptions, 0);
  testing::on_shared_model(
      ranks, [&](models::Sharing s) { return model_of(config, std::move(s)); },
      [&](const LanguageModel& model, Pool& own, RankLink& link) {
        expect_same(texts_of(model, own, options, &link), want);
      });
}

TEST(SharedEngine, every_family_has_the_texts_of_one_rank) {
  for (const auto family : models::all_text_families())
    expect_texts_of_one_rank(config_of(family, 4, 2), 2, few_pages());
}

TEST(SharedEngine, ranks_may_have_the_same_heads_of_keys) {
  for (const auto family : {io::Family::llama, io::Family::phi3, io::Family::qwen3_moe}) {
    expect_texts_of_one_rank(config_of(family, 4, 2), 4, few_pages());
    expect_texts_of_one_rank(config_of(family, 3, 1), 3, few_pages());
  }
}

TEST(SharedEngine, three_ranks_may_share_a_model) {
  expect_texts_of_one_rank(config_of(io::Family::gpt2, 6, 6), 3, few_pages());
  expect_texts_of_one_rank(config_of(io::Family::mixtral, 6, 3), 3, few_pages());
}

TEST(SharedEngine, proposals_leave_every_token_as_it_is) {
  const auto config = config_of(io::Family::llama, 4, 2);
  auto options = few_pages();
  options.speculation.ngrams = true;
  expect_texts_of_one_rank(config, 2, options);
  Pool pool(1);
  const auto draft = model_of(config), whole = model_of(config);
  const auto want = texts_of(whole, pool, few_pages());
  testing::on_shared_model(
      2, [&](models::Sharing s) { return model_of(config, std::move(s)); },
      [&](const LanguageModel& model, Pool& own, RankLink& link) {
        auto drafted = few_pages();
        drafted.speculation.draft = &draft;
        const auto got = texts_of(model, own, drafted, &link);
        expect_same(got, want);
        EXPECT_GT(got.state.accepted_tokens, 0);
      });
}

TEST(SharedEngine, texts_can_be_cancelled_have_deadlines_and_fail_alone) {
  const auto config = config_of(io::Family::llama, 4, 2);
  const auto with_nan = [&](models::Sharing s) {
    auto model = model_of(config, std::move(s));
    for (auto& p : model.parameters())  // the embedding of one token
      if (p.name == "model.embed_tokens.weight") {
        const auto begin = p.part.all() ? 0 : p.part.boxes[0].begin[0];
        if (begin <= 60 && 60 < begin + p.memory.rows())
          p.memory.ptr<float>()[(60 - begin) * p.memory.cols()] = std::numeric_limits<float>::quiet_NaN();
      }
    return model;
  };
  testing::on_shared_model(2, with_nan, [](const LanguageModel& model, Pool& pool, RankLink& link) {
    Engine engine(model, pool,
                  {.sequences = 4, .deadlines = {.first_token = 0.001, .between_tokens = 0.05}, .ranks = &link});
    engine.warm();
    Heard bad, good, cancelled;
    submit(engine, {.prompt = {5, 60, 7}, .tokens = 8}, bad);
    submit(engine, {.prompt = {5, 6, 7}, .tokens = 8}, good);
    const auto id = submit(engine, {.prompt = {1, 2}, .tokens = 100}, cancelled);
    for (int i = 0; i < 4; ++i) engine.step();
    EXPECT_TRUE(engine.cancel(id));
    engine.run();
    EXPECT_EQ(bad.end.reason, End::Reason::failed);
    EXPECT_EQ(good.end.reason, End::Reason::length) << good.end.message;
    EXPECT_EQ(cancelled.end.reason, End::Reason::cancelled);
    expect_all_pages(engine);
  });
}

TEST(SharedEngine, one_engine_may_follow_another_after_any_time) {
  const auto config = config_of(io::Family::qwen2, 4, 2);
  const auto make = [&](models::Sharing s) { return model_of(config, std::move(s)); };
  testing::run_ranks(
      2,
      [&](const comm::Group& world) {
        testing::on_shared_model(
            world, make,
            [&](const LanguageModel& model, Pool& pool, RankLink& link) {
              for (int i = 0; i < 2; ++i) {
                Engine engine(model, pool, {.ranks = &link});
                int tokens = 0;
                engine.generate(ids_from(3, 9), 5, {}, [&](std::int32_t) { return ++tokens, true; });
                EXPECT_EQ(tokens, 5);
                std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // longer than a collective may take
                link.check();
              }
            },
            std::chrono::milliseconds(100));
      },
      {.deadline_seconds = 1, .hosts = {}, .on_lost = {}});
}

TEST(SharedEngine, a_lost_rank_ends_all) {
  const auto config = config_of(io::Family::llama, 4, 2);
  const auto errors = testing::rank_errors(3, [&](const comm::Group& world) {
    if (world.rank() == 2) {
      RankLink link(world);
      const auto opened = link.next(), step = link.next();
      EXPECT_EQ(opened.kind, Order::Kind::open);
      EXPECT_EQ(step.kind, Order::Kind::step);
      throw Error("this rank burns");
    }
    testing::on_shared_model(
        world, [&](models::Sharing s) { return model_of(config_of(io::Family::llama, 3, 3), std::move(s)); },
        [](const LanguageModel& model, Pool& pool, RankLink& link) {
          Engine engine(model, pool, {.ranks = &link});
          Heard heard;
          submit(engine, {.prompt = {1, 2, 3}, .tokens = 5}, heard);
          EXPECT_THROW(engine.step(), comm::PeerLost);
          EXPECT_THROW(engine.check_ranks(), comm::PeerLost);
          engine.check_ranks();
        });
  });
  EXPECT_EQ(errors[2], "this rank burns");
  for (const int rank : {0, 1})
    EXPECT_NE(errors[static_cast<std::size_t>(rank)].find("rank 2"), std::string::npos)
        << errors[static_cast<std::size_t>(rank)];
}

TEST(SharedEngine, what_does_not_fit_is_refused) {
  const auto refusal = [](const io::ModelConfig& config, int ranks) {
    return testing::rank_errors(ranks, [&](const comm::Group& world) {
      RankLink link(world);
      model_of(config, link.sharing());
    })[0];
  };
  EXPECT_EQ(refusal(config_of(io::Family::llama, 6, 2), 4),
            "[shard] 6 heads are not divisible by tp 4, and a head cannot be split; tp may be 1, 2, 3, 6");
  EXPECT_EQ(
      refusal(config_of(io::Family::llama, 6, 2), 3),
      "[shard] 2 heads of keys and values are not divisible by tp 3, and a head cannot be split; tp may be 1, 2, 6");
  testing::run_ranks(2, [](const comm::Group& world) {
    RankLink link(world);
    const auto config = config_of(io::Family::gpt2, 4, 4);
    const auto shared = model_of(config, link.sharing()), whole = model_of(config);
    Pool pool(1);
    EXPECT_THROW(Engine(shared, pool, {}), Error) << "without a link";
    EXPECT_THROW(Engine(whole, pool, {.ranks = &link}), Error) << "a model that is not shared";
    if (!link.leads()) {
      EXPECT_THROW(Engine(shared, pool, {.ranks = &link}), Error) << "not the first rank";
    }
    const auto sequence = std::make_shared<parallel::TensorParallel>(world, nn::Sharing::sequence);
    const auto other = LanguageModel::create(config, 3, false, sequence);
    EXPECT_THROW(Engine(other, pool, {.ranks = &link}), Error) << "one token has no parts";
  });
}

}  // namespace
}  // namespace hpcdl::infer
