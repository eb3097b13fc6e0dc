// Training passes of mixtures of experts, against golden files of the transformers library, differences, and the formula
// of its loss that balances experts.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/models/tiny_for_tests.h"
#include "hpcdl/rng.h"

namespace hpcdl::models {
namespace {

constexpr std::int64_t kBatch = 2, kLength = 16, kTokens = kBatch * kLength;

struct Batch {
  std::vector<std::int32_t> tokens, targets;
};
Batch batch_of(std::int64_t vocab) {
  Batch b;
  for (std::int64_t i = 0; i < kTokens; ++i) {
    const auto draw = [&](std::uint64_t stream) {
      return static_cast<std::int32_t>(
          Rng{9, stream}.below(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(vocab)));
    };
    b.tokens.push_back(draw(1)), b.targets.push_back(i % 5 == 3 ? -1 : draw(2));
  }
  return b;
}

/// A pass, recorded and run at once.
struct Pass {
  Pool pool{2};
  Stream stream{pool};
  Graph graph{{.eager = &stream}};
  Var loss;

  Pass(const LanguageModel& model, const Batch& b, nn::ForwardOptions o, std::int64_t batch = kBatch) {
    const Spec ids{{batch, std::ssize(b.tokens) / batch}, DType::i32};
    const auto given = [&](const char* name, const std::vector<std::int32_t>& from) {
      const Var v = graph.input(name, ids);
      copy(stream, graph.eager_tensor(v), View(from.data(), ids));
      return v;
    };
    const Var tokens = given("tokens", b.tokens), targets = given("targets", b.targets);
    loss = model.loss(graph, tokens, targets, o);
  }
  double value() const { return static_cast<double>(*graph.eager_tensor(loss).ptr<float>()); }
};

double loss_of(const LanguageModel& model, const Batch& b) { return Pass(model, b, {.training = true}).value(); }

/// A model whose routers prefer some experts. All experts of a token are chosen in `smooth` ones, which have slopes
/// everywhere.
LanguageModel made(io::Family family, double balance, bool smooth) {
  auto c = tiny(family);
  c.balance = balance;
  if (smooth) c.chosen_experts = c.experts;
  auto model = LanguageModel::create(c, 3, true);
  for (auto& p : model.parameters())
    for (std::int64_t i = 0; p.param->decay && i < p.memory.size(); ++i) p.memory.ptr<float>()[i] *= 8;
  return model;
}

/// load_balancing_loss_func of transformers, from the scores of the routers of all layers (L tokens, experts).
double balance_loss(const std::vector<std::vector<float>>& scores, int chosen) {
  const auto experts = scores.front().size();
  std::vector<double> choices(experts), probabilities(experts);
  for (const auto& row : scores) {
    std::vector<std::size_t> order(experts);
    double all = 0;
    for (std::size_t e = 0; e < experts; ++e) order[e] = e, all += std::exp(static_cast<double>(row[e]));
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return row[a] > row[b]; });
    for (int i = 0; i < chosen; ++i) ++choices[order[static_cast<std::size_t>(i)]];
    for (std::size_t e = 0; e < experts; ++e) probabilities[e] += std::exp(static_cast<double>(row[e])) / all;
  }
  double sum = 0;
  const auto rows = static_cast<double>(scores.size());
  for (std::size_t e = 0; e < experts; ++e) sum += choices[e] / rows * probabilities[e] / rows;
  return sum * static_cast<double>(experts);
}

class Mixture : public testing::TestWithParam<io::Family> {};

TEST_P(Mixture, adds_the_balance_loss_of_transformers_for_every_valid_target) {
  const auto model = made(GetParam(), 0.5, false);
  const auto& c = model.config();
  const auto b = batch_of(c.vocab);
  Pass training(model, b, {.training = true});
  std::vector<std::vector<float>> scores;
  const auto& program = training.graph.program();
  for (const auto& r : program.records) {
    if (r.op != "moe_route") continue;
    const Tensor all = training.graph.eager_tensor(Var(&training.graph, 0, program.operands[r.operands + 2]));
    for (std::int64_t row = 0; row < kTokens; ++row) {
      const float* from = all.ptr<float>() + row * c.experts;
      scores.emplace_back(from, from + c.experts);
    }
  }
  ASSERT_EQ(std::ssize(scores), kTokens * c.layers);
  const double valid = static_cast<double>(std::ranges::count_if(b.targets, [](auto t) { return t >= 0; }));
  const double plain = Pass(model, b, {}).value(),
               want = 0.5 * valid * balance_loss(scores, static_cast<int>(c.chosen_experts));
  EXPECT_GT(want, 1.05 * 0.5 * valid * static_cast<double>(c.chosen_experts)) << "the experts should not be balanced";
  EXPECT_NEAR(training.value() - plain, want, 1e-6 * (plain + want));
}

/// Along the gradient of a tensor, the slope of the loss is the norm of the gradient.
TEST_P(Mixture, has_the_gradients_of_its_loss) {
  for (const bool recompute : {false, true}) {
    auto model = made(GetParam(), 0.5, true);
    const auto b = batch_of(model.config().vocab);
    Pass pass(model, b, {.recompute = recompute, .training = true});
    pass.graph.backward(pass.loss);
    std::set<std::string> seen;
    for (auto& p : model.parameters()) {
      const Tensor gradient = p.gradient->memory;
      double square = 0;
      for (std::int64_t i = 0; i < gradient.size(); ++i)
        square += std::pow(static_cast<double>(gradient.ptr<float>()[i]), 2);
      const double norm = std::sqrt(square);
      if (norm < 0.3) continue;  // below the rounding of the loss
      const std::vector<float> before(p.memory.ptr<float>(), p.memory.ptr<float>() + p.memory.size());
      constexpr double kStep = 0.02;
      const auto moved = [&](double step) {
        for (std::int64_t i = 0; i < gradient.size(); ++i)
          p.memory.ptr<float>()[i] = before[static_cast<std::size_t>(i)] +
                                     static_cast<float>(step / norm * static_cast<double>(gradient.ptr<float>()[i]));
        return loss_of(model, b);
      };
      const double slope = (moved(kStep) - moved(-kStep)) / (2 * kStep);
      std::copy(before.begin(), before.end(), p.memory.ptr<float>());
      EXPECT_NEAR(slope, norm, 0.02 * norm + 0.01) << p.name;
      const auto end = p.name.rfind(".weight");
      seen.insert(p.name.substr(p.name.rfind('.', end - 1) + 1, end - p.name.rfind('.', end - 1) - 1));
    }
    const auto spec = row_of(GetParam()).decoder(model.config());
    for (const auto name :
         {spec.expert_gate, spec.expert_up, spec.expert_down, std::string_view("gate"), std::string_view("q_proj")})
      EXPECT_TRUE(seen.contains(std::string(name))) << name << " has no gradient of any size";
  }
}

INSTANTIATE_TEST_SUITE_P(families, Mixture, testing::Values(io::Family::mixtral, io::Family::qwen3_moe),
                         [](const auto& p) { return std::string(io::enum_name(p.param)); });

TEST(mixture, has_the_loss_of_transformers) {
  for (const char* name : {"mixtral", "qwen3_moe", "qwen3_moe_sum_to_one"}) {
    const auto folder = std::filesystem::path(HPCDL_SOURCE_DIR) / "hpcdl/models/golden" / name;
    const auto model = LanguageModel::open_for_training(folder);
    const auto golden = io::SafeTensors::open(folder / "golden.safetensors");
    const View all = golden.at("tokens");
    Batch b;
    const auto columns = all.cols();
    for (std::int64_t r = 0; r < all.rows(); ++r)
      for (std::int64_t t = 0; t + 1 < columns; ++t) {
        std::int32_t two[2];
        std::memcpy(two, all.ptr<std::int32_t>() + r * columns + t, sizeof two);
        b.tokens.push_back(two[0]), b.targets.push_back(two[1]);
      }
    float want = 0;
    std::memcpy(&want, golden.at("loss").data(), sizeof want);
    const double got = Pass(model, b, {}, all.rows()).value() / static_cast<double>(b.tokens.size());
    EXPECT_NEAR(got, static_cast<double>(want), 1e-5 * static_cast<double>(want)) << name;
  }
}

TEST(mixture, without_a_coefficient_adds_no_loss) {
  const auto model = made(io::Family::mixtral, 0, false);
  const auto b = batch_of(model.config().vocab);
  EXPECT_EQ(loss_of(model, b), Pass(model, b, {}).value());
}

}  // namespace
}  // namespace hpcdl::models
