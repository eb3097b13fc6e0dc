// Models whose layers several ranks share, against one rank.

#include "hpcdl/parallel/tensor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "hpcdl/core/error.h"
#include "hpcdl/instance.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/models/family.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/parallel/mesh.h"
#include "hpcdl/rng.h"
#include "hpcdl/testing/ranks.h"
#include "hpcdl/train/train_step.h"

namespace hpcdl::parallel {
namespace {

using Scheme = TensorParallel::Scheme;
constexpr std::int64_t kBatch = 8, kLength = 16, kVocab = 67;    // over all ranks; no number of ranks divides kVocab
constexpr double kTolerance = 1e-5, kPeak = 6e-4, kWarmup = 50;  // GPT-2's learning rate, reached in the last step

io::ModelConfig tiny(io::Family family, bool tied) {
  io::ModelConfig c;
  c.family = family;
  c.layers = 2, c.heads = 8, c.width = 64, c.context = kLength, c.vocab = kVocab, c.tied = tied;
  if (family != io::Family::gpt2) c.heads = 16, c.kv_heads = 8;
  c.attention_bias = models::row_of(family).chooses_attention_bias;
  if (models::row_of(family).mixture) c.experts = 4, c.chosen_experts = 2;
  models::resolve(c);
  return c;
}

std::vector<std::int32_t> ids(std::int64_t n, std::uint64_t seed) {
  std::vector<std::int32_t> list(static_cast<std::size_t>(n));
  const Rng rng{7, seed};
  for (std::size_t i = 0; i < list.size(); ++i) list[i] = static_cast<std::int32_t>(rng.below(i, kVocab));
  return list;
}

struct Trained {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<float>> weights;
};

struct Case {
  io::ModelConfig config = tiny(io::Family::gpt2, true);
  int steps = 50;
  train::StepOptions step = {};
  Scheme scheme = Scheme::conjugate;
};

/// Trains on this rank of the mesh, with the same batches for any shape.
Trained train(const comm::Group& world, const MeshShape& shape, const Case& setup) {
  const Mesh mesh(world, shape);
  auto sharing = shape.tp > 1 ? std::make_shared<TensorParallel>(mesh.tp(), setup.scheme) : nullptr;
  auto model = models::LanguageModel::create(setup.config, 3, true, sharing);
  Pool pool(1);
  auto options = setup.step;
  options.batch = kBatch / shape.dp, options.length = kLength;
  options.data = mesh.dp();
  options.share_batch = setup.config.experts > 0;
  train::TrainStep step(model, pool, options);
  const auto mine = options.batch * kLength, first = mesh.dp().rank() * mine;
  Trained run;
  for (int i = 0; i < setup.steps; ++i) {
    const auto which = static_cast<std::uint64_t>(i % 4);  // few enough to be learned
    const auto tokens = ids(kBatch * kLength, 2 * which);
    auto targets = ids(kBatch * kLength, 2 * which + 1);
    targets[5] = targets[100] = -1;
    const auto part = [&](const std::vector<std::int32_t>& v) {
      return std::span(v).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(mine));
    };
    step.accumulate(part(tokens), part(targets), i, 0);
    const auto labels = part(targets);
    const auto result = step.update(kPeak * (i + 1) / kWarmup,
                                    std::count_if(labels.begin(), labels.end(), [](std::int32_t t) { return t >= 0; }));
    run.losses.push_back(result.loss / static_cast<double>(result.valid_tokens));
    run.norms.push_back(result.grad_norm);
  }
  for (const auto& p : model.parameters()) {
    const auto whole = model.gather(p);
    run.weights[p.name].assign(whole.tensor.ptr<float>(), whole.tensor.ptr<float>() + whole.tensor.size());
  }
  return run;
}

Trained alone(const Case& setup) {
  Trained run;
  testing::run_ranks(1, [&](const comm::Group& world) { run = train(world, {}, setup); });
  return run;
}

/// A constant added to all keys changes no attention weight: the gradient of GPT-2's bias of k consists only of
/// rounding errors, which AdamW turns into full steps.
bool has_no_gradient(const std::string& name, std::size_t i, std::size_t size) {
  return name.ends_with("c_attn.bias") && i / (size / 3) == 1;
}

/// Every rank's results against those of one rank.
void expect_parity(const Trained& got, const Trained& want, const std::string& what) {
  for (std::size_t i = 0; i < want.losses.size(); ++i) {
    ASSERT_NEAR(got.losses[i], want.losses[i], kTolerance * want.losses[i]) << what << ", step " << i;
    ASSERT_NEAR(got.norms[i], want.norms[i], 10 * kTolerance * want.norms[i]) << what << ", step " << i;
  }
  ASSERT_EQ(got.weights.size(), want.weights.size());
  for (const auto& [name, w] : want.weights) {
    const auto& g = got.weights.at(name);
    ASSERT_EQ(g.size(), w.size()) << name;
    double worst = 0;
    for (std::size_t i = 0; i < w.size(); ++i)
      if (!has_no_gradient(name, i, w.size())) worst = std::max(worst, std::fabs(double{g[i]} - double{w[i]}));
    EXPECT_LT(worst, kTolerance) << what << ": " << name;
  }
}

std::vector<MeshShape> factorisations(int world) {
  std::vector<MeshShape> list;
  for (int tp = 1; tp <= world; ++tp)
    if (world % tp == 0) list.push_back({.dp = world / tp, .tp = tp});
  return list;
}

class Parity : public ::testing::TestWithParam<std::tuple<io::Family, Scheme>> {};

TEST_P(Parity, every_mesh_trains_what_one_rank_trains) {
  const auto [family, scheme] = GetParam();
  for (const bool tied : {true, false}) {
    const Case setup{.config = tiny(family, tied), .scheme = scheme};
    const Trained want = alone(setup);
    ASSERT_LT(want.losses.back(), want.losses.front());
    for (const int n : {2, 4, 8}) {
      for (const auto& shape : factorisations(n)) {
        if (tied != (n == 8) && n != 4) continue;  // both kinds of head on some worlds, not on all
        testing::run_ranks(n, [&](const comm::Group& world) {
          expect_parity(train(world, shape, setup), want,
                        fmt::format("dp {} x tp {}, rank {}", shape.dp, shape.tp, world.rank()));
        });
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(tensor, Parity,
                         ::testing::Combine(::testing::Values(io::Family::gpt2, io::Family::llama),
                                            ::testing::Values(Scheme::conjugate, Scheme::sequence, Scheme::naive)),
                         [](const auto& i) {
                           return std::string(std::get<0>(i.param) == io::Family::gpt2 ? "gpt2_" : "llama_") +
                                  std::string(scheme_name(std::get<1>(i.param)));
                         });

Case with(io::Family family, Scheme scheme, nn::ForwardOptions forward, int steps = 10) {
  return {.config = tiny(family, true), .steps = steps, .step = {.forward = forward}, .scheme = scheme};
}

TEST(tensor, every_family_trains_what_one_rank_trains) {
  for (const auto family : models::all_text_families()) {
    const Trained want = alone(with(family, Scheme::conjugate, {}));
    for (const auto scheme : {Scheme::conjugate, Scheme::sequence, Scheme::naive}) {
      if (models::row_of(family).mixture && scheme != Scheme::conjugate) continue;
      testing::run_ranks(4, [&](const comm::Group& world) {
        expect_parity(train(world, {.dp = 2, .tp = 2}, with(family, scheme, {})), want,
                      fmt::format("{} {}", io::enum_name(family), scheme_name(scheme)));
      });
    }
  }
}

/// Values that all ranks have are dropped equally on all, and a part of the tokens as in the whole: masks do not depend
/// on the mesh.
TEST(tensor, dropout_does_not_depend_on_the_split) {
  for (const auto scheme : {Scheme::conjugate, Scheme::sequence}) {
    const Case setup = with(io::Family::gpt2, scheme, {.dropout = 0.2f});
    const Trained want = alone(setup);
    for (const auto& shape : factorisations(4))
      testing::run_ranks(4, [&](const comm::Group& world) {
        expect_parity(train(world, shape, setup), want, fmt::format("dp {} x tp {}", shape.dp, shape.tp));
      });
  }
}

TEST(tensor, the_fused_mlp_and_recomputed_logits_keep_parity) {
  for (const auto scheme : {Scheme::conjugate, Scheme::sequence, Scheme::naive}) {
    const Case setup = with(io::Family::gpt2, scheme, {.keep_logits_bytes = 0, .fused_mlp = true});
    const Trained want = alone(setup);
    testing::run_ranks(2, [&](const comm::Group& world) {
      expect_parity(train(world, {.tp = 2}, setup), want, std::string(scheme_name(scheme)));
    });
  }
}

TEST(tensor, recomputed_activations_change_no_bit) {
  for (const auto scheme : {Scheme::conjugate, Scheme::sequence, Scheme::naive}) {
    for (const auto family : {io::Family::gpt2, io::Family::llama}) {
      testing::run_ranks(2, [&](const comm::Group& world) {
        const Trained kept = train(world, {.tp = 2}, with(family, scheme, {}, 3)),
                      again = train(world, {.tp = 2}, with(family, scheme, {.recompute = true}, 3));
        EXPECT_EQ(kept.losses, again.losses);
        EXPECT_EQ(kept.weights, again.weights) << scheme_name(scheme);
      });
    }
  }
}

TEST(tensor, training_in_16_bits_follows_one_rank) {
  for (const auto scheme : {Scheme::conjugate, Scheme::sequence, Scheme::naive}) {
    const Case setup = with(io::Family::llama, scheme, {.compute = DType::bf16}, 20);
    const Trained want = alone(setup);
    testing::run_ranks(4, [&](const comm::Group& world) {
      const Trained got = train(world, {.dp = 2, .tp = 2}, setup);
      for (std::size_t i = 0; i < want.losses.size(); ++i)
        ASSERT_NEAR(got.losses[i], want.losses[i], 0x1p-8 * want.losses[i]) << scheme_name(scheme) << i;
    });
  }
}

models::LanguageModel model_of(const io::ModelConfig& config, const comm::Group& tp, Scheme scheme) {
  return models::LanguageModel::create(config, 5, true, std::make_shared<TensorParallel>(tp, scheme));
}

TEST(tensor, every_split_starts_from_the_same_weights_and_saves_the_same_files) {
  const io::TempFolder tmp;
  for (const auto family : models::text_families()) {
    const auto config = tiny(family, false);
    auto whole = models::LanguageModel::create(config, 5, true);
    whole.save(tmp / "one");
    for (const int n : {1, 2, 4, 8}) {
      for (const auto scheme : {Scheme::conjugate, Scheme::naive}) {
        testing::run_ranks(n, [&](const comm::Group& world) {
          auto made = model_of(config, world, scheme);
          auto loaded =
              models::LanguageModel::open_for_training(tmp / "one", std::make_shared<TensorParallel>(world, scheme));
          EXPECT_EQ(made.parameter_count(), whole.parameter_count());
          for (std::size_t i = 0; i < whole.parameters().size(); ++i) {
            const auto& want = whole.parameters()[i];
            for (auto* m : {&made, &loaded}) {
              const auto got = m->gather(m->parameters()[i]);
              ASSERT_EQ(got.tensor.spec(), want.memory.spec()) << want.name;
              EXPECT_EQ(
                  std::memcmp(got.tensor.data(), want.memory.data(), static_cast<std::size_t>(want.memory.bytes())), 0)
                  << want.name;
            }
          }
          made.save(tmp / "many");
          Pool pool(1);
          world.barrier(Stream(pool)).wait();
        });
        auto again = models::LanguageModel::open_for_training(tmp / "many");
        for (std::size_t i = 0; i < whole.parameters().size(); ++i)
          EXPECT_EQ(std::memcmp(again.parameters()[i].memory.data(), whole.parameters()[i].memory.data(),
                                static_cast<std::size_t>(whole.parameters()[i].memory.bytes())),
                    0);
      }
    }
  }
}

/// The ranks' parts cover every parameter: once where it is split, and each rank all of it otherwise.
TEST(tensor, parts_cover_every_parameter_once) {
  testing::run_ranks(4, [&](const comm::Group& world) {
    auto model = model_of(tiny(io::Family::gpt2, false), world, Scheme::conjugate);
    for (const auto& p : model.parameters()) {
      const bool split = p.name.find("wte") != std::string::npos || p.name.find("lm_head") != std::string::npos ||
                         p.name.find("c_attn") != std::string::npos || p.name.find("c_fc") != std::string::npos ||
                         p.name.ends_with("c_proj.weight");
      EXPECT_EQ(!p.part.all(), split) << p.name;
    }
    const auto& packed = model.parameters()[4];
    ASSERT_EQ(packed.name, "transformer.h.0.attn.c_attn.weight");
    const auto r = world.rank();
    Part third{.whole = {64, 192}, .local = {64, 48}, .strides = {48, 1}, .boxes = {}};
    for (int s = 0; s < 3; ++s) third.boxes.push_back({{0, 64 * s + 16 * r}, {64, 16}, 16 * s});
    EXPECT_EQ(packed.part, third);
  });
}

/// The reports of what a rank is doing: every collective between layers carries the name of its module.
TEST(tensor, collectives_have_names) {
  for (const auto scheme : {Scheme::conjugate, Scheme::sequence, Scheme::naive}) {
    for (const bool fused : {false, true}) {
      testing::run_ranks(2, [&](const comm::Group& world) {
        auto model = model_of(tiny(io::Family::gpt2, true), world, scheme);
        Graph g;
        const Spec spec{{2, kLength}, DType::i32};
        const Var tokens = g.input("tokens", spec), targets = g.input("targets", spec);
        g.backward(g.keep(model.loss(g, tokens, targets, {.fused_mlp = fused})));
        Pool pool(1);
        StepParams params;
        Stream s(pool, &params);
        const Instance pass(g.finish());
        for (const auto& v : {tokens, targets}) std::fill_n(pass.tensor(v).ptr<std::int32_t>(), spec.size(), 1);
        std::set<std::string> names;
        pass.run(s, 0, static_cast<int>(std::ssize(pass.program().records)), [&](int) {
          const auto last = world.ledger().collective();
          if (last.number > 0) names.insert(last.tensor);
        });
        for (const char* name : {"transformer.wte", "transformer.h.0.ln_1", "transformer.h.0.attn.c_proj",
                                 "transformer.h.1.mlp.c_proj", "transformer.ln_f", "loss"})
          EXPECT_TRUE(names.contains(name)) << scheme_name(scheme) << (fused ? ", fused: " : ": ") << name;
        EXPECT_FALSE(names.contains("")) << scheme_name(scheme);
      });
    }
  }
}

std::string refusal(const io::ModelConfig& config, int ranks) {
  std::string text;
  testing::run_ranks(ranks, [&](const comm::Group& world) {
    try {
      model_of(config, world, Scheme::conjugate);
    } catch (const UsageError& e) {
      if (world.rank() == 0) text = e.what();
    }
  });
  return text;
}

TEST(tensor, what_does_not_divide_is_refused_in_words) {
  EXPECT_EQ(refusal(tiny(io::Family::gpt2, true), 3),
            "[shard] 8 heads are not divisible by tp 3, and a head cannot be split; tp may be 1, 2, 4, 8");
  auto few = tiny(io::Family::llama, true);
  few.kv_heads = 2;
  EXPECT_NE(refusal(few, 4).find("2 heads of keys and values are not divisible by tp 4"), std::string::npos);
  auto odd = tiny(io::Family::gpt2, true);
  odd.ffn = 130;
  EXPECT_EQ(refusal(odd, 4),
            "[shard] transformer.h.0.mlp.c_fc.weight: 130 cannot be divided into 4 parts: choose another tp");
  auto words = tiny(io::Family::gpt2, true);
  words.vocab = 3;
  EXPECT_NE(refusal(words, 4).find("a vocabulary of 3 cannot be divided among 4 ranks"), std::string::npos);
}

}  // namespace
}  // namespace hpcdl::parallel
